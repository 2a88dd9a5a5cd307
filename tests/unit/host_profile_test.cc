// SPDX-License-Identifier: MIT
// Profiles: what is accepted, and for each kind of mistake the message with its place.
#include <gtest/gtest.h>

#include "host/profile/profile.h"
#include "unit/host_support.h"

namespace tenon {
namespace {

const PluginRegistry& registry() {
    static const PluginRegistry* const kRegistry = [] {
        auto* r = new PluginRegistry;
        EXPECT_TRUE(r->load({TENON_PLUGIN_DIR, TENON_FAKES "/fake"}).ok());
        return r;
    }();
    return *kRegistry;
}

constexpr const char* kGood =
    "profile = 1\n"
    "name = \"t\"\n"
    "model = { plugin = \"dsv41\", checkpoint = \"m\" }\n"
    "quant = { plugin = [\"exl3\"] }\n"
    "compute = { plugin = \"cpu\" }\n";

Result<Profile> resolve(const testing::TempFolder& folder, const std::string& text,
                        const std::vector<std::string>& set = {}) {
    const std::string file = folder.write("t.toml", text);
    auto source = read_profile(file, set);
    if (!source.ok()) {
        return source.take_status();
    }
    return resolve_profile(*source, registry());
}

TEST(Profile, Fills_in_defaults_and_makes_paths_absolute) {
    testing::TempFolder folder;
    auto p = resolve(folder, kGood);

    ASSERT_TRUE(p.ok()) << p.status().message().str();
    EXPECT_EQ(p->name, "t");
    EXPECT_EQ(p->bag("model").integer("slots"), 4);
    EXPECT_EQ(p->bag("model").text("checkpoint"), folder.path() + "/m");
    EXPECT_EQ(p->bag("engine").integer("fairness"), 60000000);
    EXPECT_EQ(p->bag("memory").integer("reserve"), int64_t{2} << 30);
    EXPECT_EQ(p->find("transport")->plugin, "local");
    EXPECT_TRUE(p->missing.empty());
    EXPECT_EQ(p->digest.size(), 64u);
}

TEST(Profile, Pitfall_17_A_profile_without_sampling_has_the_values_of_the_release) {
    testing::TempFolder folder;
    auto p = resolve(folder, kGood);

    ASSERT_TRUE(p.ok()) << p.status().message().str();
    EXPECT_EQ(p->bag("sampling").number("temperature"), 1.0);
    EXPECT_EQ(p->bag("sampling").number("top_p"), 0.95);
}

TEST(Profile, Section_form_and_inline_form_mean_the_same) {
    testing::TempFolder folder;
    auto a = resolve(folder, kGood);
    auto b = resolve(folder,
                     "profile = 1\nname = \"t\"\n[model]\nplugin = \"dsv41\"\ncheckpoint = "
                     "\"m\"\n[quant]\nplugin = "
                     "\"exl3\"\n[compute]\nplugin = \"cpu\"\n");

    ASSERT_TRUE(a.ok() && b.ok()) << b.status().message().str();
    EXPECT_EQ(a->digest, b->digest);
}

TEST(Profile, The_digest_follows_keys_that_ranks_share_and_no_others) {
    testing::TempFolder folder;
    const std::string base = resolve(folder, kGood)->digest;

    EXPECT_NE(resolve(folder, kGood, {"model.slots=2"})->digest, base);
    EXPECT_EQ(resolve(folder, kGood, {"compute.threads=1"})->digest, base);
    EXPECT_EQ(resolve(folder, kGood, {"log.level=debug"})->digest, base);
    EXPECT_EQ(resolve(folder, kGood, {"model.thinking=false"})->digest, base);
    const std::string tables = resolve(folder, kGood, {"engram.plugin=mmap"})->digest;
    auto packed = resolve(folder, kGood, {"engram.plugin=mmap", "engram.layout=packed"});
    ASSERT_TRUE(packed.ok()) << packed.status().message().str();
    EXPECT_EQ(packed->digest, tables);
}

TEST(Profile, The_digest_does_not_see_which_front_ends_a_rank_has) {
    testing::TempFolder folder;
    const std::string base = resolve(folder, kGood)->digest;
    auto serving = resolve(folder, std::string(kGood) + "frontend = [{ plugin = \"openai\" }]\n");
    auto interleaved =
        resolve(folder, std::string(kGood) + "overlay = [{ plugin = \"prefill_interleave\" }]\n");

    ASSERT_TRUE(serving.ok() && interleaved.ok());
    EXPECT_EQ(serving->digest, base);
    EXPECT_NE(interleaved->digest, base);
}

TEST(Profile, Overrides_win_and_are_checked_like_the_file) {
    testing::TempFolder folder;
    EXPECT_EQ(resolve(folder, kGood, {"model.slots=7"})->bag("model").integer("slots"), 7);
    EXPECT_EQ(resolve(folder, kGood, {"log.level=warn"})->bag("log").text("level"), "warn");
    EXPECT_EQ(
        resolve(folder, kGood, {"memory.reserve=\"3 GiB\""})->bag("memory").integer("reserve"),
        int64_t{3} << 30);
    const auto bad = resolve(folder, kGood, {"model.slots=99"});
    ASSERT_FALSE(bad.ok());
    EXPECT_NE(
        bad.status().message().str().find("--set model.slots=99: slots = 99 is out of range 1…48"),
        std::string::npos)
        << bad.status().message().str();
}

TEST(Profile, A_base_is_inherited_key_by_key) {
    testing::TempFolder folder;
    folder.write("base.toml", kGood);
    auto p = resolve(
        folder, "profile = 1\nname = \"child\"\nbase = \"base.toml\"\nmodel = { slots = 2 }\n");

    ASSERT_TRUE(p.ok()) << p.status().message().str();
    EXPECT_EQ(p->name, "child");
    EXPECT_EQ(p->bag("model").integer("slots"), 2);
    EXPECT_EQ(p->bag("model").text("checkpoint"), folder.path() + "/m");
}

TEST(Profile, Variables_come_from_the_environment) {
    testing::TempFolder folder;
    ::setenv("TENON_TEST_DIR", "/data/model", 1);
    auto p = resolve(folder, kGood, {"model.checkpoint=\"${TENON_TEST_DIR}/x\""});
    ::unsetenv("TENON_TEST_DIR");

    ASSERT_TRUE(p.ok()) << p.status().message().str();
    EXPECT_EQ(p->bag("model").text("checkpoint"), "/data/model/x");
}

TEST(Profile, A_missing_plugin_is_listed_with_place_and_nearest_name) {
    testing::TempFolder folder;
    auto p = resolve(folder, std::string(kGood) +
                                 "overlay = [{ plugin = \"no_such\", anything = 1 }]\nengram = { "
                                 "plugin = \"io_urin\" }\n");

    ASSERT_TRUE(p.ok()) << p.status().message().str();
    ASSERT_EQ(p->missing.size(), 2u);
    EXPECT_NE(p->missing[0].find("t.toml:7:"), std::string::npos) << p->missing[0];
    EXPECT_NE(p->missing[0].find("Did you mean 'io_uring'?"), std::string::npos) << p->missing[0];
    EXPECT_NE(p->missing[1].find("no overlay plugin 'no_such'"), std::string::npos)
        << p->missing[1];
}

TEST(Profile, Keys_of_every_format_of_a_chain_are_known) {
    testing::TempFolder folder;
    const std::string text =
        "profile = 1\nname = \"t\"\nmodel = { plugin = \"dsv41\", checkpoint = \"m\" }\n"
        "compute = { plugin = \"cpu\" }\n";
    auto good = resolve(
        folder, text + "quant = { plugin = [\"exl3\", \"plain\"], activation_quant = true }\n");
    auto bad = resolve(
        folder, text + "quant = { plugin = [\"exl3\", \"plain\"], activation_quan = true }\n");

    ASSERT_TRUE(good.ok()) << good.status().message().str();
    ASSERT_EQ(good->all("quant").size(), 2u);
    EXPECT_TRUE(good->all("quant")[1]->bag.flag("activation_quant"));
    EXPECT_NE(bad.status().message().str().find(
                  "unknown key 'activation_quan' in [quant] (plugin 'exl3'). Did you mean "
                  "'activation_quant'?"),
              std::string::npos)
        << bad.status().message().str();
}

TEST(Profile, The_digest_does_not_see_how_a_value_is_written) {
    testing::TempFolder folder;
    const std::string a = resolve(folder, kGood, {"engine.feature_arena=\"16 MiB\""})->digest;

    EXPECT_EQ(resolve(folder, kGood, {"engine.feature_arena=16777216"})->digest, a);
    EXPECT_EQ(resolve(folder, kGood, {"engine.feature_arena=\"16384 KiB\""})->digest, a);
    EXPECT_NE(resolve(folder, kGood, {"engine.feature_arena=16777217"})->digest, a);
}

TEST(Profile, A_mistake_in_the_base_names_the_base_file) {
    testing::TempFolder folder;
    folder.write("base.toml", std::string(kGood) + "engine = { chunk_rows = 1 }\n");
    const auto p = resolve(folder, "profile = 1\nname = \"child\"\nbase = \"base.toml\"\n");

    EXPECT_NE(p.status().message().str().find("/base.toml:6:25: chunk_rows = 1 is out of range"),
              std::string::npos)
        << p.status().message().str();
}

TEST(Profile, Features_of_later_versions_are_known_and_listed_as_missing) {
    testing::TempFolder folder;
    auto p = resolve(folder, std::string(kGood) +
                                 "kv_spill = { dir = \"/x\" }\nconstraint = { plugin = "
                                 "\"xgrammar\", whitespace = 8 }\ndeploy = { hosts = 2 }\n");

    ASSERT_TRUE(p.ok()) << p.status().message().str();
    std::string all;
    for (const std::string& line : p->missing) {
        all += line + "\n";
    }
    EXPECT_NE(all.find(":7:25: no constraint plugin 'xgrammar'"), std::string::npos) << all;
    EXPECT_EQ(all.find("kv_spill"), std::string::npos) << all;
}

TEST(Profile, Keys_that_change_nothing_are_named) {
    testing::TempFolder folder;
    auto p = resolve(
        folder, std::string(kGood) +
                    "engine = { in_flight = 2, feature_arena = \"1 MiB\" }\n"
                    "log = { prompts = true }\n"
                    "prefix = { scope = \"key\" }\nengram = { plugin = \"mmap\", lanes = 2 }\n");
    auto plain = resolve(folder, kGood);

    ASSERT_TRUE(p.ok()) << p.status().message().str();
    ASSERT_TRUE(plain.ok());
    std::string all;
    for (const std::string& line : p->ineffective) {
        all += line + "\n";
    }
    for (const char* part :
         {":6:24: in_flight in [engine] changes nothing", "feature_arena in [engine] changes",
          "prompts in [log] changes", "lanes in [engram] changes",
          "scope in [prefix] = \"key\" separates nobody"}) {
        EXPECT_NE(all.find(part), std::string::npos) << part << " in\n" << all;
    }
    EXPECT_EQ(p->ineffective.size(), 5u) << all;
    EXPECT_TRUE(plain->ineffective.empty());
}

TEST(Profile, Auto_takes_what_the_chooser_says) {
    testing::TempFolder folder;
    const std::string file = folder.write("t.toml", kGood);
    auto source = read_profile(file, {"compute.plugin=auto"});
    ASSERT_TRUE(source.ok());
    const AutoChooser chooser = [](const SectionSpec& spec, const Value& section,
                                   const std::string&) -> Result<FoundComponent> {
        EXPECT_EQ(spec.kind, PluginKind::compute);
        EXPECT_NE(section.find("plugin"), nullptr);
        return registry().find(PluginKind::compute, "cpu");
    };

    auto chosen = resolve_profile(*source, registry(), chooser);
    auto without = resolve_profile(*source, registry());
    ASSERT_TRUE(chosen.ok() && without.ok());
    EXPECT_EQ(chosen->find("compute")->plugin, "cpu");
    EXPECT_EQ(without->missing.size(), 1u);
}

TEST(Profile, Options_of_every_type_reach_the_component) {
    testing::TempFolder folder;
    auto p = resolve(folder, std::string(kGood) +
                                 "[engram]\nplugin = \"fake_rows\"\nflag = false\n"
                                 "count = 9\nratio = 1\nword = \"x\"\nchoice = \"b\"\nbytes = "
                                 "\"4 KiB\"\nlimit = \"250 ms\"\nfile = \"f\"\nplace = "
                                 "\"[::1]:80\"\nwords = [\"a\", \"b\"]\nfiles = \"only\"\n"
                                 "map = { low = 1, deep = { x = [true, 1.5, \"s\"] } }\n");
    ASSERT_TRUE(p.ok()) << p.status().message().str();
    const OptionBag& bag = p->bag("engram");

    EXPECT_FALSE(bag.flag("flag"));
    EXPECT_EQ(bag.integer("count"), 9);
    EXPECT_EQ(bag.number("ratio"), 1.0);
    EXPECT_EQ(bag.text("choice"), "b");
    EXPECT_EQ(bag.integer("bytes"), 4096);
    EXPECT_EQ(bag.integer("limit"), 250000);
    EXPECT_EQ(bag.text("file"), folder.path() + "/f");
    EXPECT_EQ(bag.text("place"), "[::1]:80");
    EXPECT_EQ(bag.list("words"), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(bag.list("files"), std::vector<std::string>{folder.path() + "/only"});
    EXPECT_EQ(bag.text("map"), R"({"deep":{"x":[true,1.5,"s"]},"low":1})");
}

struct Mistake {
    const char* name;
    const char* text;      ///< appended to the good profile
    const char* expected;  ///< part of the message
};

constexpr Mistake kMistakes[] = {
    {"unknown_top", "modle = 1\n",
     ":6:1: unknown key 'modle' in the top level. Did you mean 'model'?"},
    {"unknown_key", "engine = { chunk_row = 1 }\n",
     ":6:12: unknown key 'chunk_row' in [engine]. Did you mean 'chunk_rows'?"},
    {"unknown_plugin_key", "engram = { plugin = \"io_uring\", quue_depth = 1 }\n",
     "unknown key 'quue_depth' in [engram] (plugin 'io_uring'). Did you mean 'queue_depth'?"},
    {"wrong_type_int", "engine = { chunk_rows = \"a\" }\n",
     "chunk_rows in [engine] must be an integer, found a string (\"a\")"},
    {"wrong_type_bool", "prefix = { strict = 1 }\n",
     "strict in [prefix] must be a boolean, found an integer"},
    {"wrong_type_list", "plugins = { path = [1] }\n",
     "path in [plugins] must be a string or a list of strings"},
    {"float_for_int", "engine = { chunk_rows = 64.5 }\n", "must be an integer, found a float"},
    {"below", "engine = { chunk_rows = 63 }\n",
     "chunk_rows = 63 is out of range 64…4096 in [engine]"},
    {"above", "engine = { chunk_rows = 4097 }\n", "chunk_rows = 4097 is out of range 64…4096"},
    {"plugin_range", "engram = { plugin = \"io_uring\", queue_depth = 0 }\n",
     "queue_depth = 0 is out of range 1…4096 in [engram] (plugin 'io_uring')"},
    {"bare_time", "engine = { fairness = 60 }\n",
     "fairness in [engine] must be a time like \"30 s\""},
    {"bad_time", "engine = { fairness = \"60 years\" }\n", "'60 years' is not a time like"},
    {"bad_size", "memory = { reserve = \"2 gib\" }\n", "'2 gib' is not a size like \"512 MiB\""},
    {"negative_size", "memory = { reserve = -1 }\n", "reserve in [memory] must be bytes"},
    {"bad_choice", "log = { level = \"loud\" }\n",
     "level = \"loud\" in [log] must be one of debug|info|warn|error"},
    {"bad_address", "cluster = { rendezvous = \"host\" }\n", "must be an address like"},
    {"bad_port", "cluster = { rendezvous = \"host:99999\" }\n", "must be an address like"},
    {"memory_order", "memory = { soft = \"4 GiB\" }\n",
     ":6:19: [memory] needs reserve > soft > hard > last, found reserve = 2147483648 bytes and "
     "soft = 4294967296 bytes"},
    {"deploy_not_table", "deploy = 1\n", "'deploy' must be a table"},
    {"two_ranks_alone", "cluster = { world = 2 }\n",
     ":6:21: world = 2 in [cluster] needs the key 'rendezvous'"},
    {"two_ranks_local", "cluster = { world = 2, rendezvous = \"h:1\", secret_file = \"s\" }\n",
     "but [transport] plugin 'local' serves one rank"},
    {"too_many_ranks", "cluster = { world = 9 }\n", "world = 9 is out of range 1…8"},
    {"control_characters", "log = { level = \"a\\u0007\\nb\" }\n",
     "level = \"a\\u0007\\u000ab\" in [log] must be one of"},
    {"empty_plugin_list", "transport = { plugin = [] }\n", "plugin in [transport] must be a name"},
    {"section_not_table", "engine = 3\n", "'engine' must be a table, found an integer"},
    {"repeated_not_list", "frontend = { plugin = \"openai\" }\n",
     "'frontend' must be a list of tables: [[frontend]]"},
    {"entry_not_table", "overlay = [1]\n", "'overlay' must be a table"},
    {"no_plugin", "engram = { dir = \"x\" }\n", "[engram] needs the key 'plugin'"},
    {"plugin_not_name", "engram = { plugin = 3 }\n",
     "plugin in [engram] must be a name, found an integer"},
    {"duplicate_key", "name = \"again\"\n", ":6:"},
    {"syntax", "engine = { \n", ":6:"},
    {"bracket_colon", "[:\n", ":6:"},
    {"unset_variable", "log = { file = \"${TENON_NOT_SET_ANYWHERE}\" }\n",
     ":6:16: the variable TENON_NOT_SET_ANYWHERE is not set"},
    {"unset_variables",
     "log = { file = \"${TENON_NOT_SET_A}/${TENON_NOT_SET_B}\" }\n"
     "plugins = { path = [\"${TENON_NOT_SET_B}\", \"${TENON_NOT_SET_C}\"] }\n",
     ":6:16: the variables TENON_NOT_SET_A, TENON_NOT_SET_B, TENON_NOT_SET_C are not set; export "
     "TENON_NOT_SET_A=… TENON_NOT_SET_B=… TENON_NOT_SET_C=… first"},
    {"open_variable", "log = { file = \"${HOME\" }\n", "has '${' without '}'"},
    {"option_range", "engram = { plugin = \"fake_rows\", count = 10 }\n",
     "count = 10 is out of range 1…9 in [engram] (plugin 'fake_rows')"},
    {"option_float", "engram = { plugin = \"fake_rows\", ratio = \"x\" }\n",
     "ratio in [engram] (plugin 'fake_rows') must be a number, found a string (\"x\")"},
    {"option_choice", "engram = { plugin = \"fake_rows\", choice = \"c\" }\n",
     "choice = \"c\" in [engram] (plugin 'fake_rows') must be one of a|b"},
    {"option_size", "engram = { plugin = \"fake_rows\", bytes = \"5 KiB\" }\n",
     "bytes = \"5 KiB\" is out of range \"0 B\"…\"4.00 KiB\""},
    {"option_time", "engram = { plugin = \"fake_rows\", limit = \"10 s\" }\n",
     "limit = \"10 s\" is out of range \"0 ms\"…\"9 s\""},
    {"option_table", "engram = { plugin = \"fake_rows\", map = 3 }\n",
     "map in [engram] (plugin 'fake_rows') must be a table"},
    {"option_list", "engram = { plugin = \"fake_rows\", words = [\"a\", 1] }\n",
     "words in [engram] (plugin 'fake_rows') must be a string or a list of strings"},
    {"option_required", "engram = { plugin = \"fake_needy\" }\n",
     ":6:10: [engram] (plugin 'fake_needy') needs the key 'must': has no default"},
    {"option_of_another", "engram = { plugin = \"fake_better\", queue_depth = 3 }\n",
     "unknown key 'queue_depth' in [engram] (plugin 'fake_better')"},
    {"date", "log = { level = 1979-05-27 }\n", "level in [log] must be a string"},
    {"infinite", "sampling = { temperature = inf }\n",
     "temperature in [sampling] must be a number"},
    {"nan", "sampling = { top_p = nan }\n", "top_p in [sampling] must be a number"},
    {"zero_top_p", "sampling = { top_p = 0.0 }\n", "top_p = 0 is out of range"},
    {"deep_lists", "log = { level = [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]] }\n",
     "maximum nested value depth of 16"},
    {"letter_of_no_class", "\xef\xbb\xa1 = 1\n", ":6:1"},
    {"huge_int", "engine = { max_queued = 99999999999999999999 }\n", ":6:"},
};

void PrintTo(const Mistake& mistake, std::ostream* out) {
    *out << mistake.name;
}

class ProfileMistake : public ::testing::TestWithParam<Mistake> {};

TEST_P(ProfileMistake, Is_refused_with_place_and_reason) {
    testing::TempFolder folder;
    const auto p = resolve(folder, std::string(kGood) + GetParam().text);

    ASSERT_FALSE(p.ok());
    EXPECT_EQ(p.status().code(), Code::invalid_argument);
    const std::string message = p.status().message().str();
    EXPECT_NE(message.find(GetParam().expected), std::string::npos) << message;
    EXPECT_NE(message.find("t.toml"), std::string::npos) << message;
}

INSTANTIATE_TEST_SUITE_P(All, ProfileMistake, ::testing::ValuesIn(kMistakes),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Profile, Whole_file_mistakes_are_named) {
    testing::TempFolder folder;
    const auto message = [&](const std::string& text) {
        return resolve(folder, text).status().message().str();
    };

    EXPECT_NE(message("").find("needs the key 'profile'"), std::string::npos) << message("");
    EXPECT_NE(resolve(folder, std::string("profile = 2\n") + (kGood + 12))
                  .status()
                  .message()
                  .str()
                  .find("t.toml:1:11: profile = 2: this build reads version 1"),
              std::string::npos);
    EXPECT_NE(message("profile = 1\n").find("needs the key 'name'"), std::string::npos);
    EXPECT_NE(message("profile = 1\nname = \"x\"\n").find("[model] needs the key 'plugin'"),
              std::string::npos);
    EXPECT_NE(message("profile = 1\nname = \"x\"\nmodel = { plugin = \"dsv41\" }\n")
                  .find("needs the key 'checkpoint'"),
              std::string::npos);
    EXPECT_NE(message("\xff\xfe").find("t.toml:1:"), std::string::npos);
}

TEST(Profile, Depth_is_bounded_before_anything_recurses) {
    testing::TempFolder folder;
    const auto message = [&](const std::string& text) {
        return resolve(folder, kGood + text).status().message().str();
    };
    std::string dots;
    for (int i = 0; i < 1'000'000; ++i) {
        dots += "a.";
    }

    EXPECT_NE(message("x = " + std::string(1'000'000, '[')).find("t.toml:6:"), std::string::npos);
    EXPECT_NE(message(dots + "a = 1\n").find("t.toml:6: 1000000 dots in one line"),
              std::string::npos);
    EXPECT_NE(message("[" + dots + "a]\n").find("t.toml:6: 1000000 dots in one line"),
              std::string::npos);
    EXPECT_NE(message(dots.substr(0, 200) + "a = 1\n").find("unknown key 'a' in the top level"),
              std::string::npos);
}

TEST(Profile, What_never_ends_or_is_no_file_is_refused) {
    testing::TempFolder folder;
    const auto message = [](const std::string& file) {
        return read_profile(file, {}).status().message().str();
    };

    EXPECT_NE(message("/dev/zero").find("/dev/zero: is not a readable profile"), std::string::npos);
    EXPECT_NE(message(folder.path()).find("is a folder; a profile is a TOML file"),
              std::string::npos);
    EXPECT_NE(message(folder.path() + "/none.toml").find("cannot be opened"), std::string::npos);
    const std::string large = folder.write("large.toml", std::string((4 << 20) + 1, '\n'));
    EXPECT_NE(message(large).find("at most 4194304 bytes"), std::string::npos);
}

TEST(Profile, A_base_of_a_base_and_a_cycle_are_refused) {
    testing::TempFolder folder;
    folder.write("a.toml", "base = \"b.toml\"\n");
    const auto deep = resolve(folder, "profile = 1\nname = \"x\"\nbase = \"a.toml\"\n");
    const auto cycle = resolve(folder, "profile = 1\nname = \"x\"\nbase = \"t.toml\"\n");
    const auto gone = resolve(folder, "profile = 1\nname = \"x\"\nbase = \"gone.toml\"\n");

    EXPECT_NE(deep.status().message().str().find("inherit one level"), std::string::npos);
    EXPECT_NE(cycle.status().message().str().find("inherit one level"), std::string::npos);
    EXPECT_NE(gone.status().message().str().find("gone.toml: cannot be opened"), std::string::npos);
}

TEST(Profile, Shipped_profiles_resolve) {
    for (const char* name :
         {"MODEL_DIR", "ENGRAM_DIR", "SPILL_DIR", "KEYS", "KIT_DIR", "RANK_DIR", "SECRET_FILE"}) {
        ::setenv(name, "/nonexistent", 1);
    }
    ::setenv("HEAD_ADDR", "10.0.0.1", 1);
    for (const char* name : {"mini", "mini-plain", "h200", "h200x2", "two-sparks"}) {
        auto source = read_profile(std::string(TENON_PROFILES) + "/" + name + ".toml", {});
        ASSERT_TRUE(source.ok()) << source.status().message().str();
        auto p = resolve_profile(*source, registry());
        ASSERT_TRUE(p.ok()) << p.status().message().str();
        EXPECT_EQ(p->name, name);
        if (std::string(name).rfind("mini", 0) == 0) {
            EXPECT_TRUE(p->missing.empty()) << p->missing[0];
        }
    }
}

}  // namespace
}  // namespace tenon
