// SPDX-License-Identifier: MIT
// Plugin libraries: which are refused before dlopen, and with what message.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <sstream>

#include "host/registry/elf_check.h"
#include "host/registry/registry.h"
#include "host/services/host_services.h"
#include "unit/host_support.h"

namespace tenon {
namespace {

std::string bytes_of(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
}

std::string refusal(const std::string& file) {
    return check_library_file(file).message().str();
}

TEST(Registry, Finds_components_and_names_the_nearest) {
    PluginRegistry registry;
    ASSERT_TRUE(registry.load({TENON_PLUGIN_DIR}).ok());

    auto found = registry.find(PluginKind::compute, "cpu");
    ASSERT_TRUE(found.ok());
    EXPECT_STREQ(found->component->name, "cpu");
    auto typo = registry.find(PluginKind::compute, "cpuu");
    ASSERT_FALSE(typo.ok());
    EXPECT_NE(typo.status().message().str().find("Did you mean 'cpu'?"), std::string::npos);
    EXPECT_FALSE(registry.find(PluginKind::storage, "cpu").ok());
}

TEST(Registry, A_folder_that_does_not_exist_is_an_error) {
    PluginRegistry registry;
    EXPECT_EQ(registry.load({"/nonexistent/plugins"}).code(), Code::not_found);
}

TEST(Registry, Truncated_foreign_and_writable_libraries_are_refused_before_loading) {
    testing::TempFolder folder;
    const std::string good = bytes_of(std::string(TENON_PLUGIN_DIR) + "/local.so");
    ASSERT_GT(good.size(), 4096u);
    EXPECT_TRUE(check_library_file(std::string(TENON_PLUGIN_DIR) + "/local.so").ok());

    for (const size_t size :
         {size_t{0}, size_t{10}, size_t{64}, size_t{100}, size_t{2000}, good.size() / 2}) {
        const std::string file = folder.write("cut.so", good.substr(0, size));
        EXPECT_FALSE(check_library_file(file).ok()) << size;
    }
    std::string foreign = good;
    foreign[18] = static_cast<char>(0xF3);  // e_machine: RISC-V
    EXPECT_NE(refusal(folder.write("foreign.so", foreign)).find("built for another CPU"),
              std::string::npos);
    EXPECT_NE(refusal(folder.write("text.so", "#!/bin/sh\n")).find("not an ELF library"),
              std::string::npos);
    const std::string open = folder.write("open.so", good);
    ::chmod(open.c_str(), 0666);
    EXPECT_NE(refusal(open).find("anybody may write it"), std::string::npos);

    std::string headless = good;
    for (int i = 0; i < 8; ++i) {
        headless[static_cast<size_t>(32 + i)] = '\x7f';  // program headers far behind the end
    }
    EXPECT_NE(refusal(folder.write("headless.so", headless)).find("is cut short"),
              std::string::npos);
    EXPECT_NE(refusal(folder.path() + "/gone.so").find("cannot be opened"), std::string::npos);
    EXPECT_NE(refusal(folder.path()).find("is not a regular file"), std::string::npos);

    PluginRegistry registry;
    ASSERT_TRUE(registry.load({folder.path()}).ok());
    const auto cut = registry.find(PluginKind::transport, "cut");
    EXPECT_NE(cut.status().message().str().find("cut.so"), std::string::npos)
        << cut.status().message().str();
}

TEST(Registry, A_descriptor_of_another_build_is_refused_with_both_sides) {
    PluginDescriptor d{};
    d.magic = kPluginMagic;
    d.struct_size = sizeof d;
    d.abi_major = kAbiMajor;
    d.abi_minor = kAbiMinor;
    d.fingerprint = "0123456789abcdef";

    const std::string message = check_descriptor("x.so", &d).message().str();
    EXPECT_NE(message.find("0123456789abcdef"), std::string::npos);
    EXPECT_NE(message.find(TENON_SDK_FINGERPRINT), std::string::npos);
    d.abi_major = 9;
    EXPECT_NE(check_descriptor("x.so", &d).message().str().find("plugin ABI 9."),
              std::string::npos);
    d.magic = 1;
    EXPECT_NE(check_descriptor("x.so", &d).message().str().find("no plugin descriptor"),
              std::string::npos);
    EXPECT_FALSE(check_descriptor("x.so", nullptr).ok());
}

std::string fake(const std::string& name) {
    return std::string(TENON_FAKES) + "/" + name + "/" + name + ".so";
}

std::string why_not(const std::string& name) {
    PluginRegistry registry;
    EXPECT_TRUE(registry.load({std::string(TENON_FAKES) + "/" + name}).ok());
    for (const LoadedLibrary& l : registry.libraries()) {
        if (l.path.find(name + ".so") != std::string::npos) {
            return l.why_not;
        }
    }
    return "not looked at";
}

TEST(Registry, A_library_with_further_exports_is_refused) {
    EXPECT_EQ(why_not("fake"), "");
    EXPECT_NE(why_not("fake_two").find("among them '"), std::string::npos) << why_not("fake_two");
    EXPECT_NE(why_not("fake_two").find("a plugin exports tenon_plugin_v1 alone"),
              std::string::npos);
}

TEST(Registry, A_library_that_is_no_plugin_says_so) {
    EXPECT_NE(why_not("fake_none").find("does not export tenon_plugin_v1"), std::string::npos)
        << why_not("fake_none");
}

TEST(Registry, Every_plugin_of_the_tree_passes_the_same_checks) {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(TENON_PLUGIN_DIR)) {
        if (entry.path().extension() == ".so") {
            EXPECT_EQ(check_library_file(entry.path()).message().str(), "");
            ++count;
        }
    }
    EXPECT_GE(count, 6);
}

TEST(Registry, A_plugin_of_the_other_compiler_loads_and_its_errors_arrive) {
#ifndef TENON_OTHER_CXX
    GTEST_SKIP() << "no second compiler (packaging/packages.sh test installs it), or a build with "
                    "sanitizers, which two compilers cannot share";
#else
    // Compilers leave their name in what they make, so the test cannot pass on a plugin of its own.
#ifdef __clang__
    EXPECT_EQ(bytes_of(fake("fake_other")).find("clang version"), std::string::npos);
#else
    EXPECT_NE(bytes_of(fake("fake_other")).find("clang version"), std::string::npos);
#endif
    ASSERT_EQ(why_not("fake_other"), "");
    PluginRegistry registry;
    ASSERT_TRUE(registry.load({std::string(TENON_FAKES) + "/fake_other"}).ok());
    HostServices host;
    const auto create = [&](const char* name, const Options& options) {
        auto found = registry.find(PluginKind::storage, name);
        EXPECT_TRUE(found.ok());
        Ref<Object> object;
        return found->component->create(host, options, object.out());
    };
    OptionValue code;
    code.key = "code";
    code.type = OptionType::integer;
    code.integer = 3;
    const Options options{"[engram]", Span<const OptionValue>(&code, 1)};

    EXPECT_TRUE(create("other_rows", {}).ok());
    const Status io = create("other_failing", options);
    EXPECT_EQ(io.code(), Code::io);
    EXPECT_EQ(io.message().str(), "failing as asked");
    EXPECT_EQ(create("other_throwing", {}).code(), Code::internal);
#endif
}

TEST(Registry, The_first_folder_wins_and_is_loaded_once) {
    testing::TempFolder folder;
    const std::string copy = folder.path() + "/fake.so";
    std::filesystem::copy_file(fake("fake"), copy);
    PluginRegistry registry;
    ASSERT_TRUE(
        registry.load({folder.path(), std::string(TENON_FAKES) + "/fake", folder.path() + "/."})
            .ok());

    int libraries = 0;
    for (const LoadedLibrary& l : registry.libraries()) {
        libraries += l.path.find("/fake.so") != std::string::npos ? 1 : 0;
    }
    EXPECT_EQ(libraries, 1);
    EXPECT_EQ(registry.find(PluginKind::storage, "fake_rows")->library->path, copy);
}

TEST(Registry, A_relative_folder_in_the_environment_is_refused) {
    ::setenv("TENON_PLUGIN_PATH", "/nonexistent:plugins", 1);
    PluginRegistry registry;
    const Status status = registry.load({});
    ::unsetenv("TENON_PLUGIN_PATH");

    EXPECT_EQ(status.code(), Code::invalid_argument);
    EXPECT_NE(status.message().str().find("'plugins' is not an absolute path"), std::string::npos);
}

TEST(Registry, The_current_directory_is_never_searched) {
    testing::TempFolder folder;
    std::filesystem::copy_file(fake("fake"), folder.path() + "/fake.so");
    const auto before = std::filesystem::current_path();
    std::filesystem::current_path(folder.path());
    PluginRegistry registry;
    const Status status = registry.load({});
    std::filesystem::current_path(before);

    ASSERT_TRUE(status.ok());
    EXPECT_FALSE(registry.find(PluginKind::storage, "fake_rows").ok());
}

TEST(Registry, Links_that_lead_nowhere_are_named) {
    testing::TempFolder folder;
    std::filesystem::create_symlink("/nonexistent/x.so", folder.path() + "/lost.so");
    PluginRegistry registry;
    ASSERT_TRUE(registry.load({folder.path()}).ok());

    EXPECT_NE(registry.find(PluginKind::storage, "lost")
                  .status()
                  .message()
                  .str()
                  .find("lost.so: cannot be opened"),
              std::string::npos);
}

PluginDescriptor good_descriptor(Span<const Component> components) {
    PluginDescriptor d{};
    d.magic = kPluginMagic;
    d.struct_size = sizeof d;
    d.abi_major = kAbiMajor;
    d.abi_minor = kAbiMinor;
    d.fingerprint = TENON_SDK_FINGERPRINT;
    d.name = d.version = d.summary = d.license = "x";
    d.components = components;
    return d;
}

TEST(Registry, Records_with_holes_are_refused_before_they_are_followed) {
    auto found = [] {
        static PluginRegistry registry;
        EXPECT_TRUE(registry.load({std::string(TENON_FAKES) + "/fake"}).ok());
        return registry.find(PluginKind::storage, "fake_rows");
    }();
    ASSERT_TRUE(found.ok());
    const Component good = *found->component;
    const auto message = [](const Component& c) {
        const PluginDescriptor d = good_descriptor(Span<const Component>(&c, 1));
        return check_descriptor("x.so", &d).message().str();
    };
    EXPECT_EQ(message(good), "");

    Component c = good;
    c.name = nullptr;
    EXPECT_NE(message(c).find("'(no name)': it lacks a name"), std::string::npos);
    c = good;
    c.kind = static_cast<PluginKind>(99);
    EXPECT_NE(message(c).find("its kind is unknown"), std::string::npos);
    c = good;
    c.create = nullptr;
    EXPECT_NE(message(c).find("it lacks probe or create"), std::string::npos);
    c = good;
    c.struct_size = 8;
    EXPECT_NE(message(c).find("shorter than this host's"), std::string::npos);
    OptionSpec choice = good.options[4];
    choice.choices = nullptr;
    c = good;
    c.options = Span<const OptionSpec>(&choice, 1);
    EXPECT_NE(message(c).find("an option lacks"), std::string::npos);
    PluginDescriptor d = good_descriptor({});
    d.license = nullptr;
    EXPECT_NE(check_descriptor("x.so", &d).message().str().find("lacks a name, version"),
              std::string::npos);
    d = good_descriptor({});
    d.fingerprint = nullptr;
    EXPECT_NE(check_descriptor("x.so", &d).message().str().find("unknown ones"), std::string::npos);
}

TEST(Registry, Nearest_word_needs_to_be_near) {
    EXPECT_EQ(nearest("quue_depth", {"queue_depth", "direct"}), "queue_depth");
    EXPECT_EQ(nearest("xyz", {"queue_depth", "direct"}), "");
}

}  // namespace
}  // namespace tenon
