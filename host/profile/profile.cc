// SPDX-License-Identifier: MIT
// Validation of merged values against schema and plugins; the digest of what ranks must share.
#include "host/profile/profile.h"

#include <openssl/evp.h>

namespace tenon {
namespace {

std::string section_title(const SectionSpec& spec, const std::string& plugin) {
    const std::string name = spec.name[0] == '\0' ? "the top level"
                             : spec.repeated      ? format("[[{}]]", spec.name)
                                                  : format("[{}]", spec.name);
    return plugin.empty() ? name : format("{} (plugin '{}')", name, plugin);
}

Status unknown_key(const std::string& key, const Value& value, const std::string& title,
                   const std::vector<std::string>& known) {
    const std::string near = nearest(key, known);
    return error(Code::invalid_argument, "{}: unknown key '{}' in {}.{}", value.key_place.text(),
                 key, title, near.empty() ? "" : format(" Did you mean '{}'?", near));
}

// A section as a table; `compute = "cpu"` is no short form, so other kinds are refused.
Status expect_table(const Value& value, const std::string& name) {
    if (value.kind != ValueKind::table) {
        return error(Code::invalid_argument, "{}: '{}' must be a table, found {}",
                     value.place.text(), name, value_kind_name(value.kind));
    }
    return {};
}

class Resolver {
  public:
    Resolver(const ProfileSource& source, const PluginRegistry& registry, Profile* out)
        : source_(source), registry_(registry), out_(*out) {}

    Status run() {
        TENON_TRY(check_top());
        for (const SectionSpec& spec : profile_sections()) {
            const Value* value =
                spec.name[0] == '\0' ? &source_.root : source_.root.find(spec.name);
            if (spec.repeated) {
                TENON_TRY(repeated(spec, value));
            } else {
                TENON_TRY(section(spec, value, true));
            }
        }
        return {};
    }

  private:
    Status check_top() {
        std::vector<std::string> names;
        for (const SectionSpec& s : profile_sections()) {
            names.emplace_back(s.name);
        }
        for (const OptionSpec& o : find_section("")->keys) {
            names.emplace_back(o.key);
        }
        for (const auto& [key, value] : source_.root.table) {
            bool known = key == "deploy";
            for (const std::string& n : names) {
                known = known || key == n;
            }
            if (!known) {
                return unknown_key(key, value, section_title(*find_section(""), ""), names);
            }
        }
        return {};
    }

    Status repeated(const SectionSpec& spec, const Value* value) {
        if (value == nullptr) {
            return {};
        }
        if (value->kind != ValueKind::list) {
            return error(Code::invalid_argument, "{}: '{}' must be a list of tables: [[{}]]",
                         value->place.text(), spec.name, spec.name);
        }
        for (const Value& item : value->list) {
            TENON_TRY(section(spec, &item, true));
        }
        return {};
    }

    // The chosen component, or null with a line in `missing`.
    Status choose(const SectionSpec& spec, const std::string& plugin, const Value& place,
                  ProfileSection* out) {
        auto found = plugin == "auto" ? automatic(spec) : registry_.find(spec.kind, plugin);
        if (!found.ok()) {
            out_.missing.push_back(format("{}: {}", place.place.text(), found.status().message()));
            return {};
        }
        out->component = *found;
        if (found->library->descriptor->maturity == Maturity::experimental && !experimental_) {
            return error(Code::invalid_argument,
                         "{}: plugin '{}' is experimental; allow it with allow_experimental = true",
                         place.place.text(), plugin);
        }
        return {};
    }

    Result<FoundComponent> automatic(const SectionSpec& spec) const {
        FoundComponent best;
        int32_t best_score = 0;
        std::string reasons;
        for (const FoundComponent& f : registry_.all(spec.kind)) {
            ProbeResult probe;
            const Options none{};
            const Status status =
                f.component->probe(ProbeEnv{sizeof(ProbeEnv), nullptr, &none}, &probe);
            reasons += format("; {}: {}", f.component->name,
                              status.ok() ? StrView(probe.reason) : status.message());
            if (status.ok() && probe.score > best_score) {
                best = f;
                best_score = probe.score;
            }
        }
        if (best.component == nullptr) {
            return error(Code::unavailable, "no usable {} plugin for 'auto'{}",
                         kind_name(spec.kind), reasons);
        }
        return best;
    }

    Status section(const SectionSpec& spec, const Value* value, bool) {
        auto out = std::make_unique<ProfileSection>();
        out->spec = &spec;
        out->present = value != nullptr;
        static const Value kEmpty;
        const Value& table = value != nullptr ? *value : kEmpty;
        if (value != nullptr) {
            TENON_TRY(expect_table(table, spec.name));
        }
        if (spec.has_plugin) {
            TENON_TRY(plugin_of(spec, table, value != nullptr, out.get()));
        }
        const std::string title = section_title(spec, out->plugin);
        out->bag.set_section(title);
        Span<const OptionSpec> component;
        if (out->component.component != nullptr) {
            component = out->component.component->options;
        }
        std::vector<std::string> known;
        for (const auto& specs : {spec.keys, component}) {
            for (const OptionSpec& o : specs) {
                const Value* v = table.find(o.key);
                // Required host keys matter only where the section is written or always needed.
                Status status =
                    out->bag.add(o, v, title, v != nullptr ? source_.folder_of(*v) : "");
                if (!status.ok() && v == nullptr) {
                    return status.with_context(value != nullptr && table.place.line != 0
                                                   ? table.place.text()
                                                   : source_.shown);
                }
                TENON_TRY(std::move(status));
                known.emplace_back(o.key);
            }
        }
        TENON_TRY(check_unknown(spec, table, title, *out, known));
        if (spec.name[0] == '\0') {
            experimental_ = out->bag.flag("allow_experimental");
        }
        out_.sections.push_back(std::move(out));
        return {};
    }

    Status check_unknown(const SectionSpec& spec, const Value& table, const std::string& title,
                         const ProfileSection& section, std::vector<std::string> known) const {
        const bool top = spec.name[0] == '\0';
        const bool unchecked =
            spec.has_plugin && !section.plugin.empty() && section.component.component == nullptr;
        if (top || unchecked) {
            return {};
        }
        known.emplace_back("plugin");
        for (const auto& [key, value] : table.table) {
            bool found = key == "plugin" && spec.has_plugin;
            for (const std::string& k : known) {
                found = found || (key == k && key != "plugin");
            }
            if (!found) {
                return unknown_key(key, value, title, known);
            }
        }
        return {};
    }

    Status plugin_of(const SectionSpec& spec, const Value& table, bool present,
                     ProfileSection* out) {
        const Value* plugin = table.find("plugin");
        const std::string_view name = spec.name;
        if (plugin == nullptr) {
            if (name == "transport") {
                out->plugin = "local";
                return choose(spec, "local", table, out);
            }
            const bool needed = name == "model" || name == "quant" || name == "compute" || present;
            if (needed) {
                return error(Code::invalid_argument, "{}: [{}] needs the key 'plugin'",
                             present ? table.place.text() : source_.shown, spec.name);
            }
            return {};
        }
        const Value* first = plugin;
        if (plugin->kind == ValueKind::list && name == "quant" && !plugin->list.empty()) {
            first = &plugin->list[0];
            for (size_t i = 1; i < plugin->list.size(); ++i) {
                TENON_TRY(further_format(spec, table, plugin->list[i]));
            }
        }
        if (first->kind != ValueKind::string) {
            return error(Code::invalid_argument, "{}: plugin in [{}] must be a name{}, found {}",
                         plugin->place.text(), spec.name,
                         name == "quant" ? " or a list of names" : "",
                         value_kind_name(plugin->kind));
        }
        out->plugin = first->string;
        return choose(spec, first->string, *first, out);
    }

    // The second and later formats of a quant chain are sections of their own, after the first.
    Status further_format(const SectionSpec& spec, const Value&, const Value& name) {
        if (name.kind != ValueKind::string) {
            return error(Code::invalid_argument, "{}: plugin in [quant] must be a list of names",
                         name.place.text());
        }
        auto out = std::make_unique<ProfileSection>();
        out->spec = &spec;
        out->present = true;
        out->plugin = name.string;
        TENON_TRY(choose(spec, name.string, name, out.get()));
        later_.push_back(std::move(out));
        return {};
    }

  public:
    /// Puts the formats behind the first one and gives them their options.
    Status finish() {
        const Value* table = source_.root.find("quant");
        for (auto& s : later_) {
            const std::string title = section_title(*s->spec, s->plugin);
            s->bag.set_section(title);
            if (s->component.component != nullptr) {
                for (const OptionSpec& o : s->component.component->options) {
                    const Value* v = table == nullptr ? nullptr : table->find(o.key);
                    TENON_TRY(s->bag.add(o, v, title, v != nullptr ? source_.folder_of(*v) : ""));
                }
            }
            out_.sections.push_back(std::move(s));
        }
        return {};
    }

  private:
    const ProfileSource& source_;
    const PluginRegistry& registry_;
    Profile& out_;
    bool experimental_ = false;
    std::vector<std::unique_ptr<ProfileSection>> later_;
};

std::string digest_of(const Profile& profile) {
    std::string text;
    for (const auto& s : profile.sections) {
        if (s->spec->has_plugin) {
            text += format("{}.plugin={}\n", s->spec->name, s->plugin);
        }
        for (const OptionBag::Row& row : s->bag.rows()) {
            // Of a path only the content behind it is compared, elsewhere.
            if (row.tag == OptionTag::agree && row.type != OptionType::path &&
                row.type != OptionType::path_list) {
                text += format("{}.{}={}\n", s->spec->name, row.key, row.value);
            }
        }
    }
    unsigned char hash[32];
    EVP_Digest(text.data(), text.size(), hash, nullptr, EVP_sha256(), nullptr);
    std::string hex;
    for (const unsigned char b : hash) {
        constexpr char kDigits[] = "0123456789abcdef";
        hex += kDigits[b >> 4];
        hex += kDigits[b & 15];
    }
    return hex;
}

}  // namespace

const ProfileSection* Profile::find(std::string_view name_) const {
    for (const auto& s : sections) {
        if (name_ == s->spec->name) {
            return s.get();
        }
    }
    return nullptr;
}

const OptionBag& Profile::bag(std::string_view name_) const {
    static const OptionBag kEmpty;
    const ProfileSection* s = find(name_);
    return s == nullptr ? kEmpty : s->bag;
}

std::vector<const ProfileSection*> Profile::all(std::string_view name_) const {
    std::vector<const ProfileSection*> found;
    for (const auto& s : sections) {
        if (name_ == s->spec->name && s->present) {
            found.push_back(s.get());
        }
    }
    return found;
}

Result<Profile> resolve_profile(const ProfileSource& source, const PluginRegistry& registry) {
    Profile profile;
    profile.path = source.path;
    profile.shown = source.shown;
    Resolver resolver(source, registry, &profile);
    TENON_TRY(resolver.run());
    TENON_TRY(resolver.finish());
    profile.name = profile.bag("").text("name");
    const OptionBag& memory = profile.bag("memory");
    if (!(memory.integer("reserve") > memory.integer("soft") &&
          memory.integer("soft") > memory.integer("hard") &&
          memory.integer("hard") > memory.integer("last"))) {
        return error(
            Code::invalid_argument,
            "{}: [memory] needs reserve > soft > hard > last, found {} > {} > {} > {} bytes",
            source.shown, memory.integer("reserve"), memory.integer("soft"), memory.integer("hard"),
            memory.integer("last"));
    }
    if (profile.bag("kv_spill").is_set("dir")) {
        profile.missing.push_back(
            format("{}: [kv_spill]: this build has no disk tier for prefixes", source.shown));
    }
    profile.digest = digest_of(profile);
    return profile;
}

}  // namespace tenon
