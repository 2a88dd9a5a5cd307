// SPDX-License-Identifier: MIT
// What conformance suites of every kind share: a loaded plugin, a host that records, options built
// from their specs, and counts of threads and file descriptors.
#pragma once

#include "tenon/plugin.h"

#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tenon::testing {

/// One recorded log line.
struct LogLine {
    LogLevel level;
    std::string component;
    std::string message;
};

/// A Host for tests: keeps log lines, metric values and thread names in memory. Thread: any.
class TestHost final : public Host {
  public:
    TestHost();
    ~TestHost();
    TestHost(const TestHost&) = delete;
    TestHost& operator=(const TestHost&) = delete;

    bool log_enabled(LogLevel level) noexcept override;
    void log(LogLevel level, StrView component, StrView message) noexcept override;
    Metric* metric(const MetricDesc& desc) noexcept override;
    void metrics_text(void (*write)(void* arg, StrView text) noexcept, void* arg) noexcept override;
    Object* service(StrView facet) noexcept override;
    int64_t now_us() noexcept override;
    bool stopping() noexcept override;
    void register_thread(StrView name) noexcept override;

    /// What `service` answers for that facet; borrowed.
    void provide(const std::string& facet, Object* object);
    void set_stopping(bool value);
    std::vector<LogLine> lines() const;
    /// True when a line of at least that level contains `text`.
    bool logged(LogLevel at_least, const std::string& text) const;
    /// Lines, one each, for failure messages.
    std::string log_text() const;
    std::vector<std::string> thread_names() const;
    /// Sum (counter, gauge) or number of observations (histogram) of all series of that name.
    double metric_value(const std::string& name) const;

  private:
    class Series;
    mutable std::mutex mutex_;  // guards everything below
    std::vector<LogLine> lines_;
    std::map<std::string, std::unique_ptr<Series>> series_;
    std::map<std::string, Object*> services_;
    std::vector<std::string> threads_;
    bool stopping_ = false;
};

/// A plugin library, loaded once and never unloaded.
class LoadedPlugin {
  public:
    /// errors  not_found: no such file; unsupported: not an ELF library of this machine, no entry
    static Result<LoadedPlugin> load(const std::filesystem::path& file);

    const std::filesystem::path& path() const { return path_; }
    const PluginDescriptor& descriptor() const { return *descriptor_; }
    /// The component of that kind (and name, unless empty), or null.
    const Component* find(PluginKind kind, const std::string& name = "") const;
    std::vector<const Component*> components(PluginKind kind) const;

  private:
    std::filesystem::path path_;
    const PluginDescriptor* descriptor_ = nullptr;
};

/// Names of the dynamic symbols that a library defines and exports (ELF64, section .dynsym).
Result<std::vector<std::string>> exported_symbols(const std::filesystem::path& file);

/// A value as it crosses to a component.
struct ParsedDefault {
    int64_t integer = 0;
    double floating = 0;
    std::string text;
    std::vector<std::string> list;
};
/// Reads a default as OptionSpec documents it (TOML value text).
/// errors  invalid_argument: not a value of that type
Result<ParsedDefault> parse_default(OptionType type, const std::string& toml_text);

/// Values for `probe` and `create`, filled with the defaults of the component's OptionSpecs as the
/// host would fill them. Every `set` names a declared key; a wrong key or type aborts the test.
class OptionSet {
  public:
    explicit OptionSet(const Component& component);

    OptionSet& set(const std::string& key, bool value);
    OptionSet& set(const std::string& key, int64_t value);
    OptionSet& set(const std::string& key, int value) { return set(key, int64_t{value}); }
    OptionSet& set(const std::string& key, double value);
    OptionSet& set(const std::string& key, const char* value) {
        return set(key, std::string(value));
    }
    OptionSet& set(const std::string& key, const std::string& value);
    OptionSet& set(const std::string& key, const std::vector<std::string>& value);
    OptionSet& clear(const std::string& key);

    /// Valid until the next call of any member.
    const Options& view();
    /// Problems found while parsing the declared defaults; empty when all are well formed.
    const std::vector<std::string>& problems() const { return problems_; }

  private:
    struct Value {
        const OptionSpec* spec;
        bool is_set = false;
        bool from_profile = false;
        int64_t integer = 0;
        double floating = 0;
        std::string text;
        std::vector<std::string> list;
        std::vector<StrView> views;

        void take(ParsedDefault parsed);
    };
    Value& value_of(const std::string& key, std::initializer_list<OptionType> types);

    std::string section_;
    std::vector<Value> values_;
    std::vector<OptionValue> crossing_;
    std::vector<std::string> problems_;
    Options options_;
};

/// Calls `create` and checks the rules that hold for every kind (object only on success, a message
/// on failure).
Result<Ref<Object>> create_component(const Component& component, Host& host, OptionSet& options);

/// As above, and asks for the facet of `T`.
template <class T>
class Created {
  public:
    static Result<Created> make(const Component& component, Host& host, OptionSet& options) {
        auto object = create_component(component, host, options);
        if (!object.ok()) {
            return object.take_status();
        }
        Created created;
        created.object_ = std::move(*object);
        created.facet_ = facet_of<T>(created.object_.get());
        if (created.facet_ == nullptr) {
            return error(Code::unsupported, "{}: the created object lacks facet '{}'",
                         component.name, T::kFacet);
        }
        return Result<Created>(std::move(created));
    }
    T* operator->() const { return facet_; }
    T* get() const { return facet_; }
    void reset() {
        facet_ = nullptr;
        object_.reset();
    }

  private:
    Ref<Object> object_;
    T* facet_ = nullptr;
};

/// Threads of this process, without the kernel's io_uring workers; waits (50 ms or more) until
/// threads that end are gone.
int64_t thread_count();
/// Open file descriptors of this process, "number -> target".
std::vector<std::string> open_descriptors();
/// Bytes in use by malloc; 0 where the allocator does not tell (sanitizers).
int64_t malloc_bytes();

/// A directory that is removed at the end; made under TMPDIR or /tmp.
class TempDir {
  public:
    TempDir();
    ~TempDir();
    TempDir(const TempDir&) = delete;
    TempDir& operator=(const TempDir&) = delete;
    const std::filesystem::path& path() const { return path_; }

  private:
    std::filesystem::path path_;
};

/// The plugin named on the command line of the conformance program.
const LoadedPlugin& plugin_under_test();
/// Its components of one kind: the parameter values of a kind's suite.
std::vector<const Component*> components_under_test(PluginKind kind);
std::vector<const Component*> all_components_under_test();
/// The component's name with everything that GoogleTest forbids in names of tests replaced by '_'.
std::string test_name(const Component& component);
void set_plugin_under_test(LoadedPlugin plugin, const std::string& only_component);
/// The plugin named by `--oracle`, or null: another provider of the same kind, with whose results
/// those of the plugin under test are compared.
const LoadedPlugin* oracle_plugin();
void set_oracle_plugin(LoadedPlugin plugin);
/// Directory named by `--checkpoint`, or "": one that the model plugin under test claims.
const std::string& checkpoint_under_test();
void set_checkpoint_under_test(const std::string& directory);
/// Values that every OptionSet takes instead of a declared default (`--set key=value`, bare text
/// allowed). errors  invalid_argument: no component declares the key, or the value is not of its
/// type
Status override_option(const std::string& key, const std::string& value);

}  // namespace tenon::testing

namespace tenon {
/// GoogleTest prints a parameter by this.
void PrintTo(const Component* component, std::ostream* out);
}  // namespace tenon

/// Runs the suite once for each component of that kind in the plugin under test.
#define TENON_INSTANTIATE_FOR_KIND(suite, kind)                                            \
    GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(suite);                                  \
    INSTANTIATE_TEST_SUITE_P(                                                              \
        Plugin, suite, ::testing::ValuesIn(::tenon::testing::components_under_test(kind)), \
        [](const ::testing::TestParamInfo<const ::tenon::Component*>& param_info) {        \
            return ::tenon::testing::test_name(*param_info.param);                         \
        })

/// Fails the test with the status' text.
#define TENON_ASSERT_OK(expr)                                                                 \
    do {                                                                                      \
        const ::tenon::Status& tenon_test_status_ = (expr);                                   \
        ASSERT_TRUE(tenon_test_status_.ok()) << ::tenon::code_name(tenon_test_status_.code()) \
                                             << ": " << tenon_test_status_.message().view();  \
    } while (false)
#define TENON_EXPECT_OK(expr)                                                                 \
    do {                                                                                      \
        const ::tenon::Status& tenon_test_status_ = (expr);                                   \
        EXPECT_TRUE(tenon_test_status_.ok()) << ::tenon::code_name(tenon_test_status_.code()) \
                                             << ": " << tenon_test_status_.message().view();  \
    } while (false)
/// Expects an error of that code whose message contains `text`.
#define TENON_EXPECT_ERROR(expr, code_, text_)                                       \
    do {                                                                             \
        const ::tenon::Status& tenon_test_status_ = (expr);                          \
        EXPECT_EQ(::tenon::code_name(tenon_test_status_.code()),                     \
                  std::string(::tenon::code_name(code_)))                            \
            << tenon_test_status_.message().view();                                  \
        EXPECT_NE(tenon_test_status_.message().str().find(text_), std::string::npos) \
            << "message: " << tenon_test_status_.message().view();                   \
    } while (false)
