// SPDX-License-Identifier: MIT
// Arguments of `tenon`; the only file that includes CLI11.
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>

#include "host/cli/completion.h"
#include "host/cli/verbs.h"
#include "host/lifecycle/deployment.h"
#include "host/log/log.h"
#include "host/version.h"

namespace {

using namespace tenon;
using namespace tenon::cli;

void profile_options(CLI::App* verb, ProfileArgs* args) {
    verb->add_option("profile", args->profile, "deployment profile (TOML)")->required();
    verb->add_option("--set", args->set, "override a key: section.key=value (repeatable)")
        ->allow_extra_args(false);
}

void text_options(CLI::App* verb, TextArgs* args) {
    auto* folder =
        verb->add_option("--checkpoint", args->checkpoint, "folder with a tokenizer.json");
    auto* profile =
        verb->add_option("profile", args->profile, "deployment profile, instead of --checkpoint");
    folder->excludes(profile);
}

int need_text_source(const TextArgs& args) {
    return args.checkpoint.empty() && args.profile.empty()
               ? fail(kExitUsage, "name a profile or a folder: --checkpoint DIR")
               : 0;
}

int text_verb(const TextArgs& args, int (*run)(const TextArgs&)) {
    const int code = need_text_source(args);
    return code != 0 ? code : run(args);
}

/// An option whose value names something: `--record ""` is an unset variable of a script, and
/// taking it for no option would hide that.
std::string not_empty(const std::string& value) {
    return value.empty() ? "needs a name, found \"\"" : "";
}

std::vector<const CLI::App*> verbs_of(const CLI::App& app) {
    return app.get_subcommands([](const CLI::App*) { return true; });
}

/// CLI11 names no alternative for a misspelt verb or option; this does.
int usage_error(const CLI::App& app, int argc, char** argv, std::string message) {
    const CLI::App* at = &app;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        std::vector<std::string> names;
        if (word.rfind("--", 0) == 0) {
            for (const CLI::Option* o : at->get_options()) {
                for (const std::string& name : o->get_lnames()) {
                    names.push_back("--" + name);
                }
            }
            const std::string name = word.substr(0, word.find('='));
            const std::string near = nearest(name, names);
            if (std::find(names.begin(), names.end(), name) == names.end()) {
                message = "no option '" + name + "'" +
                          (near.empty() ? "" : ". Did you mean '" + near + "'?");
                break;
            }
            continue;
        }
        const auto verbs = verbs_of(*at);
        if (verbs.empty()) {
            continue;  // a value of the verb
        }
        for (const CLI::App* verb : verbs) {
            names.push_back(verb->get_name());
        }
        const auto known = std::find(names.begin(), names.end(), word);
        if (known == names.end()) {
            const std::string near = nearest(word, names);
            message =
                "no verb '" + word + "'" + (near.empty() ? "" : ". Did you mean '" + near + "'?");
            break;
        }
        at = verbs[static_cast<size_t>(known - names.begin())];
    }
    std::string verb;
    for (; at != &app; at = at->get_parent()) {
        verb = at->get_name() + " " + verb;
    }
    return fail(kExitUsage, message + " (see tenon " + verb + "--help)");
}

/// A file or socket that takes the place of a closed standard stream would get what is meant for a
/// terminal: log lines inside a record. Each is filled so that using it fails, as when closed.
void hold_standard_streams() {
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (::fcntl(fd, F_GETFD) < 0) {
            [[maybe_unused]] const int held =
                ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
        }
    }
}

/// The exit code after a verb's last line: output that was lost is an error, a reader that has seen
/// enough (`| head`) is none.
int with_output(int code) {
    std::cout.flush();
    if (code != kExitOk || (std::fflush(stdout) == 0 && std::ferror(stdout) == 0)) {
        return code;
    }
    pollfd out{STDOUT_FILENO, 0, 0};
    if (::poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0) {
        return code;
    }
    return fail(kExitData, "standard output could not be written; is the disk full?");
}

}  // namespace

int main(int argc, char** argv) {
    hold_standard_streams();
    CLI::App app{
        "Tenon: inference engine for the dsv41 model family.\n\nStart with:  tenon serve "
        "profiles/mini.toml",
        "tenon"};
    app.set_version_flag("--version", std::string("tenon ") + kVersion);
    app.require_subcommand(1);
    app.footer(
        "Exit codes: 0 done, 1 a verb's checks failed, 2 command line or profile, 3 plugin, 4 does "
        "not fit,\n"
        "5 device or data, 6 peer, 70 internal error.");
    int code = 0;

    ProfileArgs serve_args;
    std::string record_dir;
    auto* serve =
        app.add_subcommand("serve", "load the profile's model and serve it until SIGTERM");
    profile_options(serve, &serve_args);
    serve->add_option("--rank", serve_args.rank, "rank of this process (default: TENON_RANK, or 0)")
        ->envname("TENON_RANK")
        ->check(CLI::Range(0, 7));
    serve
        ->add_option("--record", record_dir,
                     "new folder for every step with its result, for tenon replay")
        ->check(not_empty);
    serve->footer(
        "Example:  tenon serve profiles/mini.toml --set frontend.bind=127.0.0.1:9000\n"
        "SIGTERM or Ctrl-C lets running replies end (engine.drain); a second one cuts them; SIGHUP "
        "reopens the log file.");
    serve->callback([&] { code = serve_verb(serve_args, record_dir); });

    ProfileArgs check_args;
    auto* check = app.add_subcommand(
        "check", "everything up to the memory plan; lists what this machine lacks");
    profile_options(check, &check_args);
    check->add_flag("--strict", check_args.strict, "missing plugins, devices or data are errors");
    check->footer(
        "Exit code 2: a mistake in the profile; 4: it does not fit; 5: broken data. What is merely "
        "not "
        "here\n(plugins, devices, files) is listed, and an error with --strict: 3 or 5.");
    check->callback([&] { code = check_verb(check_args); });

    ProfileArgs explain_args;
    auto* explain = app.add_subcommand(
        "explain", "each key with its value and origin, plugin choices, memory plan");
    profile_options(explain, &explain_args);
    explain->callback([&] { code = explain_verb(explain_args); });

    PluginsArgs plugins_args;
    auto* plugins =
        app.add_subcommand("plugins", "installed plugins with version, kind and options");
    plugins->add_option("--path", plugins_args.path, "further folders");
    plugins->callback([&] { code = plugins_verb(plugins_args); });

    PluginNewArgs new_args;
    auto* plugin = app.add_subcommand("plugin", "start a plugin of your own");
    plugin->require_subcommand(1);
    auto* plugin_new = plugin->add_subcommand(
        "new", "copy a template: tenon plugin new storage rowcache ./rowcache");
    plugin_new->add_option("kind", new_args.kind, "storage, overlay or quant")->required();
    plugin_new->add_option("name", new_args.name, "what a profile writes after plugin =")
        ->required();
    plugin_new->add_option("folder", new_args.folder, "new folder")->required();
    plugin_new->callback([&] { code = plugin_new_verb(new_args); });

    ChatArgs chat_args;
    auto* chat = app.add_subcommand("chat", "a conversation in the terminal");
    chat->add_option("profile", chat_args.profile.profile,
                     "deployment profile, or http://host:port of a server")
        ->required();
    chat->add_option("--set", chat_args.profile.set,
                     "override a key: section.key=value (repeatable); not for a URL")
        ->allow_extra_args(false);
    auto* once = chat->add_option("--once", chat_args.once, "answer this and exit");
    auto* thinking = chat->add_flag("--thinking", chat_args.thinking,
                                    "let the model think, whatever the profile says");
    chat->add_flag("--no-thinking", chat_args.no_thinking, "no thinking")->excludes(thinking);
    chat->footer("Against a server that wants a key, set TENON_API_KEY.");
    chat->callback([&] {
        chat_args.is_once = once->count() > 0;
        code = chat_verb(chat_args);
    });

    BenchArgs bench_args;
    auto* bench = app.add_subcommand(
        "bench", "load time, prefill and decode speed, memory, and the machine's floor");
    profile_options(bench, &bench_args.profile);
    bench
        ->add_option("--scenario", bench_args.scenario,
                     "solo: drafts on and off; streams: several at once; interleave: decoding "
                     "beside a prompt; turns: a conversation's second turn; spill: its state read "
                     "back from a temporary folder, or --set kv_spill.dir")
        ->check(CLI::IsMember({"solo", "streams", "interleave", "turns", "spill"}));
    bench
        ->add_option("--synthetic", bench_args.synthetic,
                     "folder written by models/synthetic/make.py: times of windows, draft passes "
                     "and chunks at a real geometry, with made-up weights, also by kind of call")
        ->excludes("--scenario")
        ->check(not_empty);
    bench
        ->add_option("--prompt-tokens", bench_args.prompt_tokens,
                     "length of the prefill prompt (default: 2048)")
        ->check(CLI::Range(2, 1 << 20));
    bench->add_option("--decode-tokens", bench_args.decode_tokens, "tokens decoded (default: 256)")
        ->check(CLI::Range(1, 1 << 20));
    bench
        ->add_option("--decode-prompt", bench_args.decode_prompt,
                     "prompt before decoding (default: 128)")
        ->check(CLI::Range(1, 1 << 20));
    bench->add_option("--runs", bench_args.runs, "repetitions; medians are printed (default: 5)")
        ->check(CLI::Range(1, 100));
    bench->add_flag("--json", bench_args.profile.json, "the report as one JSON object");
    bench->footer(
        "floor = memory bandwidth measured in this run / bytes of weights that one token needs.");
    bench->callback([&] {
        code = !bench_args.synthetic.empty()  ? bench_synthetic(bench_args)
               : !bench_args.scenario.empty() ? bench_scenario(bench_args)
                                              : bench_verb(bench_args);
    });

    InspectArgs inspect_args;
    auto* inspect = app.add_subcommand(
        "inspect", "list a checkpoint's matrices and tensors, or write one as f32");
    inspect->add_option("checkpoint", inspect_args.checkpoint, "folder")->required();
    inspect->add_option("--extra", inspect_args.extra, "further safetensors files");
    inspect->add_option("--tensor", inspect_args.tensor, "name, with or without .weight");
    inspect->add_option("--out", inspect_args.out, "safetensors file to write");
    inspect->footer(
        "Example:  tenon inspect models/tenon-mini --tensor layers.3.attn.wq_a --out "
        "wq_a.safetensors\n"
        "A matrix is written as [out, in] whatever its storage format.");
    inspect->callback([&] { code = inspect_verb(inspect_args); });

    TextArgs tokenize_args, detokenize_args, render_args, parse_args;
    auto* tokenize =
        app.add_subcommand("tokenize", "JSON Lines {text} to {ids}; all text is ordinary text");
    text_options(tokenize, &tokenize_args);
    tokenize->add_flag("--parse-specials", tokenize_args.parse_specials,
                       "also give ids_with_specials_parsed");
    tokenize->footer(
        "Example:  echo '{\"text\": \"Hello\"}' | tenon tokenize --checkpoint models/tenon-mini");
    tokenize->callback([&] { code = text_verb(tokenize_args, tokenize_verb); });
    auto* detokenize = app.add_subcommand("detokenize", "JSON Lines {ids} to {text}");
    text_options(detokenize, &detokenize_args);
    detokenize->add_flag("--skip-specials", detokenize_args.skip_specials,
                         "leave special tokens out");
    detokenize->callback([&] { code = text_verb(detokenize_args, detokenize_verb); });
    auto* render = app.add_subcommand(
        "render", "JSON Lines {request} to {prompt, ids, thinking, images, parse}");
    text_options(render, &render_args);
    render->footer(
        "Example:  echo '{\"request\": {\"messages\": [{\"role\": \"user\", \"content\": "
        "\"Hi\"}]}}' | tenon render profiles/mini.toml");
    render->callback([&] { code = text_verb(render_args, render_verb); });
    auto* parse = app.add_subcommand(
        "parse", "JSON Lines {text | ids, start, tools} to {reasoning, content, tool_calls}");
    text_options(parse, &parse_args);
    parse->footer(
        "Example:  echo '{\"text\": \"Easy.</think>It is 42.\", \"start\": \"reasoning\"}' | tenon "
        "parse profiles/mini.toml\n"
        "start: reasoning, content (default), reasoning_continued, content_continued or calls;\n"
        "tenon render names the one of its prompt.\n"
        "tools: a list of tools, or true for get_weather {city, days}, now {}, f (any), edit "
        "{path, "
        "old, new}.\nAlso stop, backend_finish (stop or length), parallel_tool_calls.");
    parse->callback([&] { code = text_verb(parse_args, parse_verb); });

    ScoreArgs score_args;
    auto* score = app.add_subcommand("score", "logits of every position, and perplexity");
    profile_options(score, &score_args.profile);
    score->add_option("--ids", score_args.ids, "JSON Lines {ids}")->required();
    score->add_option("--logits", score_args.logits, "safetensors file: logits.0, logits.1, …")
        ->required();
    score->add_flag("--drafts", score_args.drafts,
                    "also drafts.i after each prompt's greedy next token");
    score->footer(
        "Example line of IDS:  {\"ids\": [0, 17, 411]}.  Perplexity goes to standard output as "
        "JSON.");
    score->callback([&] { code = score_verb(score_args); });

    ReplayArgs replay_args;
    auto* replay = app.add_subcommand(
        "replay", "run a record of serve --record again; names the first step that differs");
    replay->add_option("record", replay_args.dir, "folder of the record")->required();
    replay
        ->add_option("--profile", replay_args.profile, "profile to load, if it is not where it was")
        ->check(not_empty);
    replay->footer("Exit code 1: a step differs; 5: the record is damaged.");
    replay->callback([&] { code = replay_verb(replay_args); });

    PackArgs pack_args;
    auto* pack =
        app.add_subcommand("pack-engram", "build the packed row tables of one rank (resumable)");
    profile_options(pack, &pack_args.profile);
    pack->add_option("--out", pack_args.out, "folder for the packed files")->required();
    pack->add_option("--rank", pack_args.rank, "rank (default: 0)")->check(CLI::Range(0, 7));
    pack->add_option("--world", pack_args.world, "ranks (default: 1)")->check(CLI::Range(1, 8));
    pack->add_flag("--verify", pack_args.verify, "check existing files only");
    pack->callback([&] { code = pack_engram_verb(pack_args); });

    std::string shell;
    auto* completion =
        app.add_subcommand("completion", "print a completion script: bash, zsh or fish");
    completion->add_option("shell", shell, "bash, zsh or fish")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}));
    completion->footer("Example:  source <(tenon completion bash)");
    completion->callback([&] {
        std::vector<CompletionVerb> verbs;
        for (const CLI::App* verb : verbs_of(app)) {
            CompletionVerb v{verb->get_name(), verb->get_description(), {}};
            for (const CLI::Option* o : verb->get_options()) {
                if (!o->get_lnames().empty()) {
                    v.options.push_back("--" + o->get_lnames().front());
                }
            }
            verbs.push_back(std::move(v));
        }
        std::fputs(completion_script(shell, verbs).c_str(), stdout);
    });

    if (argc < 2) {
        std::fputs(app.help().c_str(), stderr);
        return kExitUsage;
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& e) {
        return e.get_exit_code() == 0 ? with_output(app.exit(e))
                                      : usage_error(app, argc, argv, e.what());
    } catch (const std::exception& e) {
        code = fail(kExitInternal, e.what());
    }
    log_flush();
    return with_output(code);
}
