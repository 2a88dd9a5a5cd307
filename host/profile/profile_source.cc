// SPDX-License-Identifier: MIT
// Reading and merging: base first, then the profile, then --set; ${VAR} everywhere.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <tuple>

#include "host/profile/profile.h"

namespace tenon {
namespace {

namespace fs = std::filesystem;

/// A variable that the environment does not have, with the first value that asks for it.
struct Unset {
    SourcePlace place;
    std::string name;
};

Status fill_variables(Value* v, std::vector<Unset>* unset) {
    if (v->kind == ValueKind::string) {
        std::string out;
        std::string_view rest = v->string;
        for (size_t at = rest.find("${"); at != std::string_view::npos; at = rest.find("${")) {
            const size_t close = rest.find('}', at);
            if (close == std::string_view::npos) {
                return error(Code::invalid_argument, "{}: '{}' has '${' without '}'",
                             v->place.text(), v->string);
            }
            const std::string name(rest.substr(at + 2, close - at - 2));
            const char* value = std::getenv(name.c_str());
            const bool known = std::any_of(unset->begin(), unset->end(),
                                           [&](const Unset& u) { return u.name == name; });
            if (value == nullptr && !known) {
                unset->push_back({v->place, name});
            }
            out.append(rest.substr(0, at)).append(value == nullptr ? "" : value);
            rest = rest.substr(close + 1);
        }
        v->string = out.append(rest);
    }
    for (Value& item : v->list) {
        TENON_TRY(fill_variables(&item, unset));
    }
    for (auto& [key, item] : v->table) {
        static_cast<void>(key);
        TENON_TRY(fill_variables(&item, unset));
    }
    return {};
}

/// Fills `v` and all below it. errors  invalid_argument: names every variable that is not set
Status fill_variables(Value* v) {
    std::vector<Unset> unset;
    TENON_TRY(fill_variables(v, &unset));
    if (unset.empty()) {
        return {};
    }
    std::stable_sort(unset.begin(), unset.end(), [](const Unset& a, const Unset& b) {
        return std::tie(a.place.file, a.place.line, a.place.column) <
               std::tie(b.place.file, b.place.line, b.place.column);
    });
    std::string names;
    std::string exports;
    for (const Unset& u : unset) {
        names += (names.empty() ? "" : ", ") + u.name;
        exports += " " + u.name + "=…";
    }
    const bool one = unset.size() == 1;
    return error(Code::invalid_argument, "{}: the variable{} {} {} not set; export{} first",
                 unset.front().place.text(), one ? "" : "s", names, one ? "is" : "are", exports);
}

// Tables of the base and the profile join key by key; everything else is replaced.
void merge(Value* base, Value over) {
    for (auto& [key, value] : over.table) {
        Value* old = base->find(key);
        if (old != nullptr && old->kind == ValueKind::table && value.kind == ValueKind::table) {
            old->key_place = value.key_place;
            old->place = value.place;
            merge(old, std::move(value));
        } else {
            base->set(key, std::move(value));
        }
    }
}

void move_places(Value* v, const SourcePlace& place) {
    v->place = v->key_place = place;
    for (Value& item : v->list) {
        move_places(&item, place);
    }
    for (auto& [key, item] : v->table) {
        static_cast<void>(key);
        move_places(&item, place);
    }
}

Status apply_override(Value* root, const std::string& text) {
    const size_t equals = text.find('=');
    const std::string shown = format("--set {}", text);
    if (equals == std::string::npos || equals == 0) {
        return error(Code::invalid_argument, "{}: expected section.key=value", shown);
    }
    std::string right = text.substr(equals + 1);
    auto parsed = parse_toml_value(right, shown);
    if (!parsed.ok()) {
        // Shells make quoting tedious, so a bare word is a string.
        Value word;
        word.kind = ValueKind::string;
        word.string = right;
        parsed = Result<Value>(std::move(word));
    }
    move_places(&*parsed, {shown, 0, 0});
    Value* at = root;
    std::string_view path(text);
    path = path.substr(0, equals);
    while (true) {
        const size_t dot = path.find('.');
        const std::string part(path.substr(0, dot));
        if (part.empty()) {
            return error(Code::invalid_argument, "{}: expected section.key=value", shown);
        }
        const bool last = dot == std::string_view::npos;
        if (at->kind == ValueKind::list) {
            const bool index =
                part.find_first_not_of("0123456789") == std::string::npos && part.size() < 4;
            const size_t i = index ? static_cast<size_t>(std::stoi(part)) : 0;
            if (i >= at->list.size()) {
                return error(Code::invalid_argument, "{}: there are {} entries, counted from 0",
                             shown, at->list.size());
            }
            at = &at->list[i];
            if (index) {
                if (last) {
                    return error(Code::invalid_argument, "{}: names an entry, not a key of it",
                                 shown);
                }
                path = path.substr(dot + 1);
                continue;
            }
        }
        if (at->kind != ValueKind::table) {
            return error(Code::invalid_argument, "{}: '{}' lies inside a value that is no table",
                         shown, part);
        }
        if (last && at == root && part == "base") {
            return error(Code::invalid_argument,
                         "{}: overrides come after the base; write base into a profile", shown);
        }
        if (last) {
            at->set(part, std::move(*parsed));
            return {};
        }
        Value* next = at->find(part);
        if (next == nullptr) {
            Value table;
            table.place = table.key_place = {shown, 0, 0};
            next = &at->set(part, std::move(table));
        }
        at = next;
        path = path.substr(dot + 1);
    }
}

}  // namespace

std::string ProfileSource::folder_of(const Value& value) const {
    for (const auto& [file, folder] : folders) {
        if (file == value.place.file) {
            return folder;
        }
    }
    // An override's paths belong to where the command was run.
    return value.place.file.empty() ? fs::path(path).parent_path().string()
                                    : fs::current_path().string();
}

Result<ProfileSource> read_profile(const std::string& path,
                                   const std::vector<std::string>& overrides) {
    std::error_code ec;
    ProfileSource source;
    source.shown = path;
    source.path = fs::absolute(path, ec).lexically_normal().string();
    TENON_ASSIGN(source.root, parse_toml_file(source.path, path));
    source.folders.emplace_back(path, fs::path(source.path).parent_path().string());
    if (Value* base = source.root.find("base")) {
        if (base->kind != ValueKind::string) {
            return error(Code::invalid_argument, "{}: base must be the path of a profile",
                         base->place.text());
        }
        TENON_TRY(fill_variables(base));
        const fs::path parent =
            (fs::path(source.path).parent_path() / base->string).lexically_normal();
        const SourcePlace at = base->place;
        const std::string shown = fs::path(base->string).is_absolute()
                                      ? base->string
                                      : (fs::path(path).parent_path() / base->string).string();
        auto root = parse_toml_file(parent.string(), shown);
        if (!root.ok()) {
            return root.status().with_context(format("{}: base", at.text()));
        }
        if (const Value* twice = root->find("base")) {
            return error(Code::invalid_argument,
                         "{}: {} has a base itself ({}); profiles inherit one level", at.text(),
                         shown, twice->place.text());
        }
        source.folders.emplace_back(shown, parent.parent_path().string());
        merge(&*root, std::move(source.root));
        source.root = std::move(*root);
    }
    for (const std::string& text : overrides) {
        TENON_TRY(apply_override(&source.root, text));
    }
    TENON_TRY(fill_variables(&source.root));
    return source;
}

}  // namespace tenon
