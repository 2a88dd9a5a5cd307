// SPDX-License-Identifier: MIT
// The plugin `image_cache`: images that were encoded once are not encoded again.
#include "tenon/plugin.h"

#include <iterator>

#include "image_cache.h"

namespace tenon::image_cache {
namespace {

constexpr const char* kName = "image_cache";
constexpr int64_t kDefaultBudget = int64_t{256} << 20;

constexpr OptionSpec kOptions[] = {{.key = "budget",
                                    .type = OptionType::size,
                                    .default_value = "\"256 MiB\"",
                                    .help = "encoded images kept on rank 0",
                                    .min = 0,
                                    .max = 1e12},
                                   {.key = "states",
                                    .type = OptionType::boolean,
                                    .default_value = "true",
                                    .help = "keep prefix cuts beyond an image"}};

Status probe(const ProbeEnv&, ProbeResult* result) noexcept {
    result->score = 10;
    set_text(result->reason, "host memory");
    return {};
}

Status create(Host&, const Options& options, Object** out) noexcept {
    return guard([&] {
        const OptionValue* budget = options.find("budget");
        const OptionValue* states = options.find("states");
        *out =
            new ImageCache(budget != nullptr && budget->is_set ? budget->integer : kDefaultBudget,
                           states == nullptr || !states->is_set || states->integer != 0);
    });
}

constexpr Component kComponents[] = {{.struct_size = sizeof(Component),
                                      .kind = PluginKind::overlay,
                                      .name = kName,
                                      .summary = "encoded images by content",
                                      .options = {kOptions, std::size(kOptions)},
                                      .needs = {},
                                      .probe = &probe,
                                      .create = &create}};

}  // namespace
}  // namespace tenon::image_cache

TENON_PLUGIN("image_cache", "0.1.0", "Encoded images by content", "MIT", stable,
             tenon::image_cache::kComponents)
