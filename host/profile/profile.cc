// SPDX-License-Identifier: MIT
// Validation of merged values against schema and plugins; the digest of what ranks must share.
#include "host/profile/profile.h"

#include <openssl/evp.h>

#include <algorithm>

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

class Resolver {
  public:
    Resolver(const ProfileSource& source, const PluginRegistry& registry,
             const AutoChooser& choose_auto, Profile* out)
        : source_(source), registry_(registry), choose_auto_(choose_auto), out_(*out) {}

    Status run() {
        TENON_TRY(check_top());
        for (const SectionSpec& spec : profile_sections()) {
            const Value* value =
                spec.name[0] == '\0' ? &source_.root : source_.root.find(spec.name);
            if (!spec.repeated) {
                TENON_TRY(section(spec, value));
            } else if (value != nullptr) {
                TENON_TRY(repeated(spec, *value));
            }
        }
        return {};
    }

  private:
    Status check_top() {
        std::vector<std::string> names = {"deploy"};  // its keys belong to `tenon deploy`
        for (const SectionSpec& s : profile_sections()) {
            names.emplace_back(s.name);
        }
        for (const OptionSpec& o : find_section("")->keys) {
            names.emplace_back(o.key);
        }
        for (const auto& [key, value] : source_.root.table) {
            if (std::find(names.begin(), names.end(), key) == names.end()) {
                return unknown_key(key, value, section_title(*find_section(""), ""), names);
            }
        }
        const Value* deploy = source_.root.find("deploy");
        return deploy == nullptr ? Status() : expect_table(*deploy, "deploy");
    }

    // `compute = "cpu"` is no short form, so other kinds than tables are refused.
    static Status expect_table(const Value& value, const char* name) {
        if (value.kind == ValueKind::table) {
            return {};
        }
        return error(Code::invalid_argument, "{}: '{}' must be a table, found {}",
                     value.place.text(), name, value_kind_name(value.kind));
    }

    Status repeated(const SectionSpec& spec, const Value& value) {
        if (value.kind != ValueKind::list) {
            return error(Code::invalid_argument, "{}: '{}' must be a list of tables: [[{}]]",
                         value.place.text(), spec.name, spec.name);
        }
        for (const Value& item : value.list) {
            TENON_TRY(section(spec, &item));
        }
        return {};
    }

    /// One section: its plugin (for quant: all formats of the chain), then its keys.
    Status section(const SectionSpec& spec, const Value* value) {
        static const Value kEmpty;
        const Value& table = value != nullptr ? *value : kEmpty;
        TENON_TRY(expect_table(table, spec.name));
        std::vector<std::unique_ptr<ProfileSection>> made;
        if (spec.has_plugin) {
            TENON_TRY(plugins_of(spec, value, &made));
        }
        if (made.empty()) {
            made.push_back(new_section(spec, ""));
        }
        std::vector<std::string> known;
        bool all_known = true;
        for (auto& s : made) {
            s->present = value != nullptr;
            all_known = all_known && (s->plugin.empty() || s->component.component != nullptr);
            const std::string place =
                value != nullptr && table.place.line != 0 ? table.place.text() : source_.shown;
            // Host keys belong to the first format of a chain only.
            TENON_TRY(add_keys(*s, table, s == made.front(), place, &known));
        }
        if (spec.name[0] == '\0') {
            experimental_ = made.front()->bag.flag("allow_experimental");
        } else if (all_known) {
            TENON_TRY(check_unknown(spec, table, made.front()->bag.section(), std::move(known)));
        }
        std::move(made.begin(), made.end(), std::back_inserter(out_.sections));
        return {};
    }

    static std::unique_ptr<ProfileSection> new_section(const SectionSpec& spec,
                                                       const std::string& plugin) {
        auto out = std::make_unique<ProfileSection>();
        out->spec = &spec;
        out->plugin = plugin;
        return out;
    }

    Status add_keys(ProfileSection& s, const Value& table, bool host_keys, const std::string& place,
                    std::vector<std::string>* known) const {
        const std::string title = section_title(*s.spec, s.plugin);
        s.bag.set_section(title);
        Span<const OptionSpec> lists[2];
        if (host_keys) {
            lists[0] = s.spec->keys;
        }
        if (s.component.component != nullptr) {
            lists[1] = s.component.component->options;
        }
        for (const Span<const OptionSpec>& list : lists) {
            for (const OptionSpec& o : list) {
                const Value* v = table.find(o.key);
                Status status = s.bag.add(o, v, title, v != nullptr ? source_.folder_of(*v) : "");
                if (!status.ok() && v == nullptr) {
                    return status.with_context(place);
                }
                TENON_TRY(std::move(status));
                known->emplace_back(o.key);
            }
        }
        return {};
    }

    static Status check_unknown(const SectionSpec& spec, const Value& table,
                                const std::string& title, std::vector<std::string> known) {
        if (spec.has_plugin) {
            known.emplace_back("plugin");
        }
        for (const auto& [key, value] : table.table) {
            if (std::find(known.begin(), known.end(), key) == known.end()) {
                return unknown_key(key, value, title, known);
            }
        }
        return {};
    }

    Status plugins_of(const SectionSpec& spec, const Value* table,
                      std::vector<std::unique_ptr<ProfileSection>>* made) {
        const std::string_view name = spec.name;
        const Value* plugin = table == nullptr ? nullptr : table->find("plugin");
        if (plugin == nullptr) {
            if (name == "transport") {
                Value local;
                local.kind = ValueKind::string;
                local.string = "local";
                local.place.file = source_.shown;
                return choose(spec, local, table, made);
            }
            const bool needed =
                name == "model" || name == "quant" || name == "compute" || table != nullptr;
            return !needed
                       ? Status()
                       : error(Code::invalid_argument, "{}: [{}] needs the key 'plugin'",
                               table != nullptr ? table->place.text() : source_.shown, spec.name);
        }
        const bool chain = name == "quant";
        if (!chain || plugin->kind != ValueKind::list || plugin->list.empty()) {
            return choose(spec, *plugin, table, made);
        }
        for (const Value& item : plugin->list) {
            TENON_TRY(choose(spec, item, table, made));
        }
        return {};
    }

    /// Adds a section for one plugin name; a plugin that is not there becomes a line in `missing`.
    Status choose(const SectionSpec& spec, const Value& name, const Value* table,
                  std::vector<std::unique_ptr<ProfileSection>>* made) {
        if (name.kind != ValueKind::string) {
            return error(Code::invalid_argument, "{}: plugin in [{}] must be a name{}, found {}",
                         name.place.text(), spec.name,
                         std::string_view(spec.name) == "quant" ? " or a list of names" : "",
                         value_kind_name(name.kind));
        }
        made->push_back(new_section(spec, name.string));
        // What the choice looks at is named beside the plugin, perhaps in another file than it.
        const Value* data = table != nullptr ? table->find("checkpoint") : nullptr;
        auto found =
            name.string == "auto" && choose_auto_ && table != nullptr
                ? choose_auto_(spec, *table, source_.folder_of(data != nullptr ? *data : name))
                : registry_.find(spec.kind, name.string);
        if (!found.ok()) {
            out_.missing.push_back(format("{}: {}", name.place.text(), found.status().message()));
            return {};
        }
        made->back()->component = *found;
        made->back()->plugin = found->component->name;
        if (found->library->descriptor->maturity == Maturity::experimental && !experimental_) {
            return error(Code::invalid_argument,
                         "{}: plugin '{}' is experimental; allow it with allow_experimental = true",
                         name.place.text(), found->component->name);
        }
        return {};
    }

    const ProfileSource& source_;
    const PluginRegistry& registry_;
    const AutoChooser& choose_auto_;
    Profile& out_;
    bool experimental_ = false;
};

/// Rules between keys, and features that the schema knows and this build lacks.
class CrossChecks {
  public:
    CrossChecks(const ProfileSource& source, Profile* profile)
        : source_(source), profile_(*profile) {}

    Status run() {
        const int64_t version = profile_.bag("").integer("profile");
        if (version != kProfileVersion) {
            return error(Code::invalid_argument, "{}: profile = {}: this build reads version {}",
                         place("", "profile"), version, kProfileVersion);
        }
        TENON_TRY(memory());
        TENON_TRY(cluster());
        if (profile_.bag("model").is_set("rank_files")) {
            lacks("model", "rank_files", "writes and reads no rank files");
        }
        find_ineffective();
        return {};
    }

  private:
    std::string place(const char* section, const char* key) const {
        const Value* table = section[0] == '\0' ? &source_.root : source_.root.find(section);
        const Value* value = table == nullptr ? nullptr : table->find(key);
        return value != nullptr                             ? value->place.text()
               : table != nullptr && table->place.line != 0 ? table->place.text()
                                                            : source_.shown;
    }

    void lacks(const char* section, const char* key, const char* what) {
        profile_.missing.push_back(
            format("{}: {} in [{}]: this build {}", place(section, key), key, section, what));
    }

    void find_ineffective() {
        const auto note = [this](const char* section, const char* key, const char* why) {
            profile_.ineffective.push_back(
                format("{}: {} in [{}] {}", place(section, key), key, section, why));
        };
        const OptionBag& engine = profile_.bag("engine");
        const auto written = [&engine](const char* key) {
            const Options options = engine.view();
            const OptionValue* value = options.find(key);
            return value != nullptr && value->from_profile;
        };
        if (profile_.bag("engram").integer("lanes") > 1) {
            note("engram", "lanes", "changes nothing: this version reads with one ring");
        }
        if (written("in_flight") && engine.integer("in_flight") > 1) {
            note("engine", "in_flight", "changes nothing: this version submits one step at a time");
        }
        if (written("feature_arena")) {
            note("engine", "feature_arena", "changes nothing: this version takes no images");
        }
        if (profile_.bag("log").flag("prompts")) {
            note("log", "prompts", "changes nothing: this version writes no prompts to the log");
        }
        const auto frontends = profile_.all("frontend");
        const bool asks_keys =
            std::any_of(frontends.begin(), frontends.end(), [](const ProfileSection* f) {
                return f->component.component == nullptr || f->bag.is_set("api_key_file");
            });
        if (profile_.bag("prefix").text("scope") == "key" && !asks_keys) {
            note("prefix", "scope",
                 "= \"key\" separates nobody: no front end has an api_key_file, so all callers "
                 "share one scope");
        }
    }

    Status memory() const {
        constexpr const char* kLevels[] = {"reserve", "soft", "hard", "last"};
        const OptionBag& bag = profile_.bag("memory");
        for (int i = 0; i < 3; ++i) {
            if (bag.integer(kLevels[i]) <= bag.integer(kLevels[i + 1])) {
                return error(Code::invalid_argument,
                             "{}: [memory] needs reserve > soft > hard > last, found {} = {} bytes "
                             "and {} = {} bytes",
                             place("memory", kLevels[i + 1]), kLevels[i], bag.integer(kLevels[i]),
                             kLevels[i + 1], bag.integer(kLevels[i + 1]));
            }
        }
        return {};
    }

    Status cluster() {
        const OptionBag& bag = profile_.bag("cluster");
        const int64_t world = bag.integer("world");
        if (world == 1) {
            return {};
        }
        for (const char* key : {"rendezvous", "secret_file"}) {
            if (!bag.is_set(key)) {
                return error(Code::invalid_argument,
                             "{}: world = {} in [cluster] needs the key '{}'",
                             place("cluster", "world"), world, key);
            }
        }
        const std::string& transport = profile_.find("transport")->plugin;
        if (transport == "local") {
            return error(
                Code::invalid_argument,
                "{}: world = {} in [cluster], but [transport] plugin 'local' serves one rank",
                place("cluster", "world"), world);
        }
        lacks("cluster", "world", "serves one rank");
        return {};
    }

    const ProfileSource& source_;
    Profile& profile_;
};

/// Front ends and grammars work on rank 0 alone, so ranks need not name the same plugin.
bool is_shared(PluginKind kind) {
    return kind != PluginKind::frontend && kind != PluginKind::constraint;
}

std::string digest_of(const Profile& profile) {
    std::string text;
    for (const auto& s : profile.sections) {
        if (s->spec->has_plugin && is_shared(s->spec->kind)) {
            text += format("{}.plugin={}\n", s->spec->name, s->plugin);
        }
        for (const OptionBag::Row& row : s->bag.rows()) {
            // Of a path only the content behind it is compared, elsewhere.
            if (row.tag == OptionTag::agree && row.type != OptionType::path &&
                row.type != OptionType::path_list) {
                text += format("{}.{}={}:{}\n", s->spec->name, row.key, row.meaning.size(),
                               row.meaning);
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

Result<Profile> resolve_profile(const ProfileSource& source, const PluginRegistry& registry,
                                const AutoChooser& choose_auto) {
    Profile profile;
    profile.path = source.path;
    profile.shown = source.shown;
    TENON_TRY(Resolver(source, registry, choose_auto, &profile).run());
    TENON_TRY(CrossChecks(source, &profile).run());
    profile.name = profile.bag("").text("name");
    profile.digest = digest_of(profile);
    return profile;
}

}  // namespace tenon
