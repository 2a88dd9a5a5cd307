// SPDX-License-Identifier: MIT
// Plugin libraries: which are refused before dlopen, and with what message.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <sstream>

#include "host/registry/elf_check.h"
#include "host/registry/registry.h"
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

TEST(Registry, Nearest_word_needs_to_be_near) {
    EXPECT_EQ(nearest("quue_depth", {"queue_depth", "direct"}), "queue_depth");
    EXPECT_EQ(nearest("xyz", {"queue_depth", "direct"}), "");
}

}  // namespace
}  // namespace tenon
