// SPDX-License-Identifier: MIT
// The one door of a plugin: a descriptor with plain constant data, readable without creating
// anything.
#pragma once

#include "tenon/fingerprint.h"
#include "tenon/host.h"

namespace tenon {

constexpr uint32_t kPluginMagic = 0x314E4E54;  // "TNN1"
constexpr uint16_t kAbiMajor = 0;
constexpr uint16_t kAbiMinor = 1;

enum class PluginKind : uint32_t {
    compute,
    quant,
    model,
    transport,
    storage,
    frontend,
    overlay,
    constraint,
};
constexpr int kPluginKinds = 8;
constexpr const char* kind_name(PluginKind kind) {
    constexpr const char* kNames[] = {"compute", "quant",    "model",   "transport",
                                      "storage", "frontend", "overlay", "constraint"};
    const auto i = static_cast<uint32_t>(kind);
    return i < kPluginKinds ? kNames[i] : "unknown";
}

enum class Maturity : uint32_t { experimental, stable };

enum class OptionType : uint32_t {
    boolean,
    integer,
    floating,
    string,
    choice,   ///< one of OptionSpec::choices
    size,     ///< bytes: integer or "512 MiB"
    time,     ///< "30 s"; crosses as microseconds
    path,     ///< made absolute, relative to the profile
    address,  ///< "host:port"
    string_list,
    path_list,
    table,  ///< a TOML table, crosses as JSON text
};

/// How ranks treat a key: must agree, local, informational (architecture.md 7).
enum class OptionTag : uint32_t { agree, local, info };

/// One option of a component; the only place it is declared.
struct OptionSpec {
    const char* key;
    OptionType type;
    const char* default_value;  ///< TOML value text ("64", "\"auto\"", "\"30 s\""), or null: none
    const char* help;           ///< one line
    double min = 0, max = 0;    ///< numbers, sizes (bytes), times (µs); min == max: unbounded
    const char* choices = nullptr;  ///< choice: "threads|none"
    OptionTag tag = OptionTag::local;
    bool required = false;
};

/// Validated values, one per OptionSpec (defaults filled in). Borrowed for the call of
/// `create`/`probe`.
struct OptionValue {
    StrView key;
    OptionType type = OptionType::boolean;
    bool is_set = false;        ///< false: no value and no default
    bool from_profile = false;  ///< written by the user, not a default
    int64_t integer = 0;        ///< boolean, integer, size, time
    double floating = 0;
    StrView text;  ///< string, choice, path, address, table
    Span<const StrView> list;
};

struct Options {
    StrView section;  ///< "[engram] (plugin 'io_uring')", for messages
    Span<const OptionValue> values;

    const OptionValue* find(StrView key) const {
        for (const OptionValue& v : values) {
            if (v.key == key) {
                return &v;
            }
        }
        return nullptr;
    }
    bool flag(StrView key) const { return integer(key) != 0; }
    int64_t integer(StrView key) const {
        const OptionValue* v = find(key);
        return v == nullptr ? 0 : v->integer;
    }
    double number(StrView key) const {
        const OptionValue* v = find(key);
        return v == nullptr                      ? 0
               : v->type == OptionType::floating ? v->floating
                                                 : static_cast<double>(v->integer);
    }
    StrView text(StrView key) const {
        const OptionValue* v = find(key);
        return v == nullptr ? StrView() : v->text;
    }
    Span<const StrView> list(StrView key) const {
        const OptionValue* v = find(key);
        return v == nullptr ? Span<const StrView>() : v->list;
    }
};

/// Something a component must be given: a facet of another component, or an op.
struct Need {
    const char* facet;  ///< "quant.format/1", "op:norm.rms/1"
    bool optional = false;
};

struct ProbeEnv {
    uint32_t struct_size = sizeof(ProbeEnv);
    Host* host = nullptr;
    const Options* options = nullptr;
};

struct ProbeResult {
    uint32_t struct_size = sizeof(ProbeResult);
    int32_t score = 0;      ///< for `plugin = "auto"`: the highest wins; <= 0: not usable here
    char reason[240] = {};  ///< one line: why (not) usable, what limits it
};

struct Component {
    uint32_t struct_size;
    PluginKind kind;
    const char* name;     ///< what a profile writes after `plugin =`
    const char* summary;  ///< one line
    Span<const OptionSpec> options;
    Span<const Need> needs;
    /// Cheap, no side effects.
    Status (*probe)(const ProbeEnv&, ProbeResult*) noexcept;
    /// Main thread, in the creation order of architecture.md 6.
    Status (*create)(Host&, const Options&, Object** out) noexcept;
};

struct PluginDescriptor {
    uint32_t magic;
    uint32_t struct_size;
    uint16_t abi_major, abi_minor;
    const char* fingerprint;
    const char* name;
    const char* version;  ///< semantic version of the plugin
    const char* summary;
    const char* license;  ///< SPDX id
    Maturity maturity;
    Span<const Component> components;
};

using PluginEntry = const PluginDescriptor* (*)() noexcept;
constexpr const char* kPluginEntryName = "tenon_plugin_v1";

/// Copies `text` into a fixed field, cut to fit.
template <size_t N>
void set_text(char (&field)[N], std::string_view text) {
    const size_t n = text.size() < N - 1 ? text.size() : N - 1;
    std::memcpy(field, text.data(), n);
    field[n] = '\0';
}

}  // namespace tenon

/// Defines the entry of a plugin.
///
///   TENON_PLUGIN("exl3", "0.1.0", "EXL3 weights", "MIT", stable, kComponents)
/// where kComponents is a static array of tenon::Component.
///
/// With TENON_STATIC_PLUGIN defined to an identifier the entry gets that name instead, so that
/// several plugins can be linked into one program.
#ifdef TENON_STATIC_PLUGIN
#define TENON_PLUGIN_ENTRY_ TENON_CONCAT(tenon_plugin_v1_, TENON_STATIC_PLUGIN)
#else
#define TENON_PLUGIN_ENTRY_ tenon_plugin_v1
#endif
#define TENON_PLUGIN(name_, version_, summary_, license_, maturity_, components_)             \
    extern "C" __attribute__((visibility("default"))) const ::tenon::PluginDescriptor*        \
    TENON_PLUGIN_ENTRY_() noexcept {                                                          \
        static const ::tenon::PluginDescriptor kDescriptor{::tenon::kPluginMagic,             \
                                                           sizeof(::tenon::PluginDescriptor), \
                                                           ::tenon::kAbiMajor,                \
                                                           ::tenon::kAbiMinor,                \
                                                           TENON_SDK_FINGERPRINT,             \
                                                           name_,                             \
                                                           version_,                          \
                                                           summary_,                          \
                                                           license_,                          \
                                                           ::tenon::Maturity::maturity_,      \
                                                           components_};                      \
        return &kDescriptor;                                                                  \
    }
