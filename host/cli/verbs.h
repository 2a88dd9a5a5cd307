// SPDX-License-Identifier: MIT
// The verbs of `tenon`, one function each; main.cc parses arguments and calls them. All return the
// exit code.
#pragma once

#include <string>
#include <vector>

namespace tenon::cli {

struct ProfileArgs {
    std::string profile;
    std::vector<std::string> set;  ///< section.key=value
    int rank = 0;                  ///< serve
    bool strict = false;           ///< check: missing plugins and data are errors
    bool json = false;             ///< bench: print the report as JSON alone
};
int serve_verb(const ProfileArgs& args, const std::string& record);
int check_verb(const ProfileArgs& args);
int explain_verb(const ProfileArgs& args);

struct PluginsArgs {
    std::vector<std::string> path;
};
int plugins_verb(const PluginsArgs& args);
struct PluginNewArgs {
    std::string kind, name, folder;
};
int plugin_new_verb(const PluginNewArgs& args);

struct ChatArgs {
    ProfileArgs profile;
    std::string once;  ///< answer this and exit, if `is_once`
    bool is_once = false;
    bool thinking = false, no_thinking = false;
};
int chat_verb(const ChatArgs& args);

struct BenchArgs {
    ProfileArgs profile;
    std::string scenario;   ///< "": one request at a time; else solo, streams, interleave or turns
    std::string synthetic;  ///< folder of a model without values
    int prompt_tokens = 2048, decode_tokens = 256, decode_prompt = 128, runs = 5;
};
int bench_verb(const BenchArgs& args);
/// `bench --scenario`: each figure beside the same with the switch off, in one run.
int bench_scenario(const BenchArgs& args);
/// `bench --synthetic`: steps of a model whose weights are made up, without engine and text.
int bench_synthetic(const BenchArgs& args);

struct InspectArgs {
    std::string checkpoint;
    std::vector<std::string> extra;
    std::string tensor, out;
};
int inspect_verb(const InspectArgs& args);

struct TextArgs {
    std::string checkpoint, profile;
    bool parse_specials = false, skip_specials = false;
};
int tokenize_verb(const TextArgs& args);
int detokenize_verb(const TextArgs& args);
int render_verb(const TextArgs& args);
int parse_verb(const TextArgs& args);

struct ScoreArgs {
    ProfileArgs profile;
    std::string ids, logits;
    bool drafts = false;
};
int score_verb(const ScoreArgs& args);

struct ReplayArgs {
    std::string dir;      ///< of `serve --record`
    std::string profile;  ///< instead of the recorded path, if not empty
};
int replay_verb(const ReplayArgs& args);
/// Contents of a record's manifest.
std::string record_manifest(const ProfileArgs& args, const std::string& profile_digest);

struct PackArgs {
    ProfileArgs profile;
    std::string out;
    int rank = 0, world = 1;
    bool verify = false;
};
int pack_engram_verb(const PackArgs& args);

/// Prints `message` to stderr and returns `code`.
int fail(int code, const std::string& message);

}  // namespace tenon::cli
