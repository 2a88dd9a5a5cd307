// SPDX-License-Identifier: MIT
// A real plugin that does little: components that are refused, that fail, and that offer no facet,
// for tests of registry, profile and lifecycle.
#include "tenon/overlay.h"
#include "tenon/plugin.h"

#ifndef FAKE_PREFIX
#define FAKE_PREFIX "fake"
#endif
#ifndef FAKE_MATURITY
#define FAKE_MATURITY stable
#endif

namespace tenon {
namespace {

class Nothing final : public Object {
  public:
    void* query(StrView) noexcept override { return nullptr; }
    void release() noexcept override { delete this; }
};

class NoMedia final : public Implements<NoMedia, MediaCache> {
  public:
    bool get(const uint8_t*, Span<uint8_t>) noexcept override { return false; }
    void put(const uint8_t*, Span<const uint8_t>) noexcept override {}
    bool keeps_states() noexcept override { return false; }
};

Status usable(const ProbeEnv&, ProbeResult* out) noexcept {
    out->score = 1000;
    set_text(out->reason, "works everywhere");
    return {};
}
Status better(const ProbeEnv&, ProbeResult* out) noexcept {
    out->score = 2000;
    set_text(out->reason, "works better");
    return {};
}
Status refused(const ProbeEnv&, ProbeResult* out) noexcept {
    set_text(out->reason, "this machine has no such device");
    return {};
}
Status make_nothing(Host&, const Options&, Object** out) noexcept {
    return guard([&] { *out = new Nothing; });
}
Status make_media(Host&, const Options&, Object** out) noexcept {
    return guard([&] { *out = new NoMedia; });
}
Status fail_by_code(Host&, const Options& options, Object**) noexcept {
    constexpr Code kCodes[] = {
        Code::invalid_argument, Code::unsupported, Code::does_not_fit, Code::io,
        Code::device,           Code::peer,        Code::internal};
    const auto i = static_cast<size_t>(options.integer("code"));
    return error(kCodes[i], "failing as asked");
}
Status throw_inside(Host&, const Options&, Object**) noexcept {
    return guard([]() -> Status { throw std::string("not even an exception type"); });
}

const OptionSpec kEvery[] = {
    {"flag", OptionType::boolean, "true", "a flag"},
    {"count", OptionType::integer, "3", "a count", 1, 9},
    {"ratio", OptionType::floating, "0.5", "a ratio", 0, 1},
    {"word", OptionType::string, "\"w\"", "a word"},
    {"choice", OptionType::choice, "\"a\"", "a choice", 0, 0, "a|b"},
    {"bytes", OptionType::size, "\"1 KiB\"", "a size", 0, 4096},
    {"limit", OptionType::time, "\"2 s\"", "a time", 0, 9e6},
    {"file", OptionType::path, nullptr, "a path"},
    {"place", OptionType::address, nullptr, "an address"},
    {"words", OptionType::string_list, "[]", "words"},
    {"files", OptionType::path_list, "[]", "paths"},
    {"map", OptionType::table, nullptr, "a table"},
};
const OptionSpec kNeeded[] = {
    {"must", OptionType::string, nullptr, "has no default", 0, 0, nullptr, OptionTag::local, true},
};
const OptionSpec kCode[] = {
    {"code", OptionType::integer, "0", "which error", 0, 6},
};

constexpr uint32_t kSize = sizeof(Component);
const Component kComponents[] = {
    {kSize,
     PluginKind::storage,
     FAKE_PREFIX "_rows",
     "every option type",
     kEvery,
     {},
     &usable,
     &make_nothing},
    {kSize,
     PluginKind::storage,
     FAKE_PREFIX "_better",
     "a higher score",
     {},
     {},
     &better,
     &make_nothing},
    {kSize,
     PluginKind::storage,
     FAKE_PREFIX "_needy",
     "a required option",
     kNeeded,
     {},
     &usable,
     &make_nothing},
    {kSize,
     PluginKind::storage,
     FAKE_PREFIX "_refused",
     "its probe says no",
     {},
     {},
     &refused,
     &make_nothing},
    {kSize,
     PluginKind::storage,
     FAKE_PREFIX "_failing",
     "its create fails",
     kCode,
     {},
     &usable,
     &fail_by_code},
    {kSize,
     PluginKind::storage,
     FAKE_PREFIX "_throwing",
     "its create throws",
     {},
     {},
     &usable,
     &throw_inside},
    {kSize,
     PluginKind::overlay,
     FAKE_PREFIX "_hookless",
     "no hook",
     {},
     {},
     &usable,
     &make_nothing},
    {kSize,
     PluginKind::overlay,
     FAKE_PREFIX "_media",
     "the media hook",
     {},
     {},
     &usable,
     &make_media},
    {kSize,
     PluginKind::frontend,
     FAKE_PREFIX "_frontend",
     "no front end",
     {},
     {},
     &usable,
     &make_nothing},
};

}  // namespace
}  // namespace tenon

TENON_PLUGIN(FAKE_PREFIX, "9.9.9", "fakes for tests", "MIT", FAKE_MATURITY, tenon::kComponents)

#ifdef FAKE_SECOND_EXPORT
extern "C" __attribute__((visibility("default"))) int fake_second_export() {
    return 1;
}
#endif
