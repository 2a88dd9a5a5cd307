// SPDX-License-Identifier: MIT
// Loads a plugin library for a conformance run and reads what it exports.
#include "tenon/testing/plugin_fixture.h"

#include <cctype>
#include <fstream>
#include <ostream>

#include <dlfcn.h>
#include <elf.h>

namespace tenon::testing {
namespace {

namespace fs = std::filesystem;

Result<std::string> read_library(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    if (!in) {
        return error(Code::not_found, "{}: cannot be opened", file);
    }
    std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    if (bytes.size() < sizeof(Elf64_Ehdr) || bytes.compare(0, SELFMAG, ELFMAG) != 0 ||
        bytes[EI_CLASS] != ELFCLASS64) {
        return error(Code::unsupported, "{}: not a 64-bit ELF library", file);
    }
    return bytes;
}

/// The i-th record of type T at `offset`, checked against the file's end.
template <class T>
bool record_at(const std::string& bytes, uint64_t offset, uint64_t i, T* out) {
    if (i > bytes.size() / sizeof(T) || offset > bytes.size() ||
        (i + 1) * sizeof(T) > bytes.size() - offset) {
        return false;
    }
    std::memcpy(out, bytes.data() + offset + i * sizeof(T), sizeof(T));
    return true;
}

}  // namespace

Result<std::vector<std::string>> exported_symbols(const fs::path& file) {
    TENON_ASSIGN(const std::string bytes, read_library(file));
    Elf64_Ehdr header;
    std::memcpy(&header, bytes.data(), sizeof header);
    std::vector<std::string> names;
    bool found = false;
    for (uint64_t s = 0; s < header.e_shnum; ++s) {
        Elf64_Shdr section;
        Elf64_Shdr strings;
        if (!record_at(bytes, header.e_shoff, s, &section)) {
            return error(Code::unsupported, "{}: truncated section table", file);
        }
        if (section.sh_type != SHT_DYNSYM) {
            continue;
        }
        found = true;
        if (!record_at(bytes, header.e_shoff, section.sh_link, &strings)) {
            return error(Code::unsupported, "{}: no string table", file);
        }
        for (uint64_t i = 0; i < section.sh_size / sizeof(Elf64_Sym); ++i) {
            Elf64_Sym symbol;
            if (!record_at(bytes, section.sh_offset, i, &symbol)) {
                return error(Code::unsupported, "{}: truncated symbol table", file);
            }
            const auto bind = ELF64_ST_BIND(symbol.st_info);
            if (symbol.st_shndx == SHN_UNDEF || bind == STB_LOCAL) {
                continue;
            }
            const uint64_t at = strings.sh_offset + symbol.st_name;
            if (at >= bytes.size()) {
                return error(Code::unsupported, "{}: symbol name outside the file", file);
            }
            names.emplace_back(bytes.c_str() + at);
        }
    }
    if (!found) {
        return error(Code::unsupported, "{}: no .dynsym section", file);
    }
    return names;
}

Result<LoadedPlugin> LoadedPlugin::load(const fs::path& file) {
    std::error_code ec;
    LoadedPlugin plugin;
    // A bare name would be searched in the loader's path; a canonical one never is.
    plugin.path_ = fs::canonical(file, ec);
    if (ec) {
        return error(Code::not_found, "{}: {}", file, ec.message());
    }
    if (auto bytes = read_library(plugin.path_); !bytes.ok()) {
        return bytes.take_status();
    }
    void* library = dlopen(plugin.path_.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
        return error(Code::unsupported, "{}", dlerror());
    }
    const auto entry = reinterpret_cast<PluginEntry>(dlsym(library, kPluginEntryName));
    if (entry == nullptr) {
        return error(Code::unsupported, "{}: no symbol {}", plugin.path_, kPluginEntryName);
    }
    plugin.descriptor_ = entry();
    if (plugin.descriptor_ == nullptr) {
        return error(Code::unsupported, "{}: {} returned null", plugin.path_, kPluginEntryName);
    }
    if (plugin.descriptor_->magic != kPluginMagic) {
        return error(Code::unsupported, "{}: descriptor magic {}, expected {}", plugin.path_,
                     plugin.descriptor_->magic, kPluginMagic);
    }
    if (std::string(plugin.descriptor_->fingerprint) != TENON_SDK_FINGERPRINT) {
        return error(Code::unsupported,
                     "{}: built with SDK headers {}, this suite with {}; build both with one SDK",
                     plugin.path_, plugin.descriptor_->fingerprint, TENON_SDK_FINGERPRINT);
    }
    return plugin;
}

const Component* LoadedPlugin::find(PluginKind kind, const std::string& name) const {
    for (const Component& component : descriptor_->components) {
        if (component.kind == kind && (name.empty() || name == component.name)) {
            return &component;
        }
    }
    return nullptr;
}

std::vector<const Component*> LoadedPlugin::components(PluginKind kind) const {
    std::vector<const Component*> out;
    for (const Component& component : descriptor_->components) {
        if (component.kind == kind) {
            out.push_back(&component);
        }
    }
    return out;
}

namespace {
// The program tests one plugin; main sets both before GoogleTest expands the parameterised suites.
std::optional<LoadedPlugin> plugin_under_test_;
std::string only_component_;
std::optional<LoadedPlugin> oracle_plugin_;
std::string checkpoint_;
}  // namespace

void set_checkpoint_under_test(const std::string& directory) {
    checkpoint_ = directory;
}

const std::string& checkpoint_under_test() {
    return checkpoint_;
}

void set_oracle_plugin(LoadedPlugin plugin) {
    oracle_plugin_ = std::move(plugin);
}

const LoadedPlugin* oracle_plugin() {
    return oracle_plugin_.has_value() ? &*oracle_plugin_ : nullptr;
}

void set_plugin_under_test(LoadedPlugin plugin, const std::string& only_component) {
    plugin_under_test_ = std::move(plugin);
    only_component_ = only_component;
}

const LoadedPlugin& plugin_under_test() {
    TENON_CHECK(plugin_under_test_.has_value(), "no plugin: set_plugin_under_test comes first");
    return *plugin_under_test_;
}

std::vector<const Component*> all_components_under_test() {
    std::vector<const Component*> out;
    if (plugin_under_test_.has_value()) {
        for (const Component& component : plugin_under_test_->descriptor().components) {
            if (only_component_.empty() || only_component_ == component.name) {
                out.push_back(&component);
            }
        }
    }
    return out;
}

std::vector<const Component*> components_under_test(PluginKind kind) {
    std::vector<const Component*> out;
    for (const Component* component : all_components_under_test()) {
        if (component->kind == kind) {
            out.push_back(component);
        }
    }
    return out;
}

std::string test_name(const Component& component) {
    std::string name = component.name == nullptr ? "unnamed" : component.name;
    for (char& c : name) {
        c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
    }
    return name.empty() ? "unnamed" : name;
}

}  // namespace tenon::testing

namespace tenon {
void PrintTo(const Component* component, std::ostream* out) {
    if (component == nullptr) {
        *out << "no component";
        return;
    }
    *out << kind_name(component->kind) << " '" << component->name << "'";
}
}  // namespace tenon
