// SPDX-License-Identifier: MIT
// The value types that may cross the plugin boundary (StrView, Span, Status) and the error helpers
// built on them.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace tenon {

/// Borrowed UTF-8 text. Same layout in every standard library, unlike std::string_view.
struct StrView {
    const char* data = "";
    uint64_t size = 0;

    constexpr StrView() = default;
    constexpr StrView(const char* text, uint64_t length) : data(text), size(length) {}
    constexpr StrView(const char* text) : StrView(std::string_view(text)) {}
    constexpr StrView(std::string_view text) : data(text.data()), size(text.size()) {}
    StrView(const std::string& text) : data(text.data()), size(text.size()) {}
    constexpr operator std::string_view() const { return {data, static_cast<size_t>(size)}; }
    constexpr std::string_view view() const { return {data, static_cast<size_t>(size)}; }
    std::string str() const { return std::string(view()); }
    constexpr bool empty() const { return size == 0; }
    friend constexpr bool operator==(StrView a, StrView b) { return a.view() == b.view(); }
};

/// Borrowed contiguous elements; the owner is named by whoever returns it.
template <class T>
struct Span {
    T* data = nullptr;
    uint64_t size = 0;

    constexpr Span() = default;
    constexpr Span(T* first, uint64_t count) : data(first), size(count) {}
    template <uint64_t N>
    constexpr Span(T (&array)[N]) : data(array), size(N) {}
    template <class U, class = std::enable_if_t<std::is_convertible_v<U (*)[], T (*)[]>>>
    constexpr Span(Span<U> other) : data(other.data), size(other.size) {}
    template <class U, class = std::enable_if_t<std::is_convertible_v<U (*)[], T (*)[]>>>
    constexpr Span(std::span<U> other) : data(other.data()), size(other.size()) {}
    template <class U, class A,
              class = std::enable_if_t<std::is_convertible_v<const U (*)[], T (*)[]>>>
    Span(const std::vector<U, A>& v) : data(v.data()), size(v.size()) {}
    template <class U, class A, class = std::enable_if_t<std::is_convertible_v<U (*)[], T (*)[]>>>
    Span(std::vector<U, A>& v) : data(v.data()), size(v.size()) {}
    constexpr operator std::span<T>() const { return {data, static_cast<size_t>(size)}; }
    constexpr T* begin() const { return data; }
    constexpr T* end() const { return data + size; }
    constexpr T& operator[](uint64_t i) const { return data[i]; }
    constexpr bool empty() const { return size == 0; }
    constexpr Span subspan(uint64_t first, uint64_t count) const { return {data + first, count}; }
};

/// Error classes; HTTP statuses and exit codes that belong to them: docs/architecture.md 13.
enum class Code : uint32_t {
    ok = 0,
    invalid_argument,
    unsupported,
    does_not_fit,
    not_found,
    unavailable,
    cancelled,
    deadline,
    io,
    device,
    peer,
    internal,
};

constexpr const char* code_name(Code code) {
    constexpr const char* kNames[] = {
        "ok",        "invalid_argument", "unsupported", "does_not_fit", "not_found", "unavailable",
        "cancelled", "deadline",         "io",          "device",       "peer",      "internal"};
    const auto i = static_cast<uint32_t>(code);
    return i < sizeof(kNames) / sizeof(kNames[0]) ? kNames[i] : "unknown";
}

namespace detail {

inline void append(std::string& out, std::string_view v) {
    out.append(v);
}
inline void append(std::string& out, StrView v) {
    out.append(v.view());
}
inline void append(std::string& out, const std::string& v) {
    out.append(v);
}
inline void append(std::string& out, const char* v) {
    out.append(v);
}
inline void append(std::string& out, char v) {
    out.push_back(v);
}
inline void append(std::string& out, bool v) {
    out.append(v ? "true" : "false");
}
inline void append(std::string& out, double v) {
    char text[40];
    std::snprintf(text, sizeof text, "%.9g", v);
    out.append(text);
}
template <class T>
requires(std::is_integral_v<T> && !std::is_same_v<T, bool> &&
         !std::is_same_v<T, char>) void append(std::string& out, T v) {
    out.append(std::to_string(v));
}
template <class T>
requires std::is_enum_v<T>
void append(std::string& out, T v) {
    append(out, static_cast<std::underlying_type_t<T>>(v));
}
inline void append(std::string& out, float v) {
    append(out, static_cast<double>(v));
}
template <class T>
requires requires(const T& v) {
    { v.native() } -> std::convertible_to<std::string>;
}
void append(std::string& out, const T& path) {
    out.append(path.native());
}

inline void format_to(std::string& out, std::string_view text) {
    out.append(text);
}
template <class First, class... Rest>
void format_to(std::string& out, std::string_view text, const First& first, const Rest&... rest) {
    const size_t at = text.find("{}");
    if (at == std::string_view::npos) {
        out.append(text);
        return;
    }
    out.append(text.substr(0, at));
    append(out, first);
    format_to(out, text.substr(at + 2), rest...);
}

}  // namespace detail

/// Replaces each "{}" by the next argument (text, integers, floats, bool, paths).
template <class... Args>
std::string format(std::string_view text, const Args&... args) {
    std::string out;
    detail::format_to(out, text, args...);
    return out;
}

/// Result of a call: null means success, else a record with code and message.
///
/// The record is freed through its own function pointer, so it may come from any library.
class [[nodiscard]] Status {
  public:
    struct Record {
        Code code;
        uint32_t message_bytes;
        const char* message;  // UTF-8, not null-terminated by contract (ours are)
        void (*release)(Record*) noexcept;
    };

    Status() noexcept = default;
    explicit Status(Record* record) noexcept : record_(record) {}
    Status(Code code, std::string_view message) noexcept : record_(make(code, message)) {}
    Status(Status&& other) noexcept : record_(std::exchange(other.record_, nullptr)) {}
    Status& operator=(Status&& other) noexcept {
        if (this != &other) {
            reset();
            record_ = std::exchange(other.record_, nullptr);
        }
        return *this;
    }
    Status(const Status&) = delete;
    Status& operator=(const Status&) = delete;
    ~Status() { reset(); }

    bool ok() const noexcept { return record_ == nullptr; }
    explicit operator bool() const noexcept { return ok(); }
    Code code() const noexcept { return record_ ? record_->code : Code::ok; }
    StrView message() const noexcept {
        return record_ ? StrView(record_->message, record_->message_bytes) : StrView();
    }
    /// A second owner of the same code and text.
    Status copy() const noexcept { return ok() ? Status() : Status(code(), message().view()); }
    /// Same code, "context: message".
    Status with_context(std::string_view context) const {
        if (ok()) {
            return {};
        }
        return Status(code(), std::string(context) + ": " + message().str());
    }

  private:
    struct Owned : Record {
        std::string text;
    };
    static void release_owned(Record* record) noexcept { delete static_cast<Owned*>(record); }
    static Record* make(Code code, std::string_view message) noexcept {
        static constexpr char kNoMemory[] = "out of memory while reporting an error";
        static Record fallback{Code::internal, sizeof kNoMemory - 1, kNoMemory,
                               [](Record*) noexcept {}};
        try {
            auto* owned = new Owned;
            owned->text = message;
            owned->code = code == Code::ok ? Code::internal : code;
            owned->message = owned->text.c_str();
            owned->message_bytes = static_cast<uint32_t>(owned->text.size());
            owned->release = &release_owned;
            return owned;
        } catch (...) {
            return &fallback;
        }
    }
    void reset() noexcept {
        if (record_ != nullptr) {
            record_->release(record_);
            record_ = nullptr;
        }
    }

    Record* record_ = nullptr;
};

/// An error with a formatted message: where, what, found against expected, what to do.
template <class... Args>
Status error(Code code, std::string_view text, const Args&... args) {
    return Status(code, format(text, args...));
}

/// A value or an error. Never crosses the plugin boundary.
template <class T>
class [[nodiscard]] Result {
  public:
    Result(T value) : value_(std::move(value)) {}
    Result(Status status) : status_(std::move(status)) {
        if (status_.ok()) {
            status_ = Status(Code::internal, "success without a value");
        }
    }
    bool ok() const { return value_.has_value(); }
    explicit operator bool() const { return ok(); }
    T& operator*() { return *value_; }
    const T& operator*() const { return *value_; }
    T* operator->() { return &*value_; }
    const T* operator->() const { return &*value_; }
    const Status& status() const { return status_; }
    Status take_status() { return std::move(status_); }

  private:
    std::optional<T> value_;
    Status status_;
};

/// Runs `body` and turns an exception into a Status, so that none crosses the boundary.
template <class Body>
Status guard(Body&& body) noexcept {
    try {
        if constexpr (std::is_void_v<std::invoke_result_t<Body>>) {
            std::forward<Body>(body)();
            return {};
        } else {
            return std::forward<Body>(body)();
        }
    } catch (const std::bad_alloc&) {
        return Status(Code::does_not_fit, "out of host memory");
    } catch (const std::exception& e) {
        return Status(Code::internal, e.what());
    } catch (...) {
        return Status(Code::internal, "unknown exception");
    }
}

namespace detail {
[[noreturn]] inline void check_failed(const char* file, int line, const char* what,
                                      const std::string& values) {
    std::fprintf(stderr, "%s:%d: check failed: %s%s%s\n", file, line, what,
                 values.empty() ? "" : ": ", values.c_str());
    std::abort();
}
}  // namespace detail

}  // namespace tenon

#define TENON_CONCAT_(a, b) a##b
#define TENON_CONCAT(a, b) TENON_CONCAT_(a, b)

/// Returns the error of a Status expression.
#define TENON_TRY(expr)                         \
    do {                                        \
        ::tenon::Status tenon_status_ = (expr); \
        if (!tenon_status_.ok()) {              \
            return tenon_status_;               \
        }                                       \
    } while (false)

/// As TENON_TRY, with "context: " in front; the context is formatted only on failure.
#define TENON_TRY_CTX(expr, ...)                                             \
    do {                                                                     \
        ::tenon::Status tenon_status_ = (expr);                              \
        if (!tenon_status_.ok()) {                                           \
            return tenon_status_.with_context(::tenon::format(__VA_ARGS__)); \
        }                                                                    \
    } while (false)

/// `TENON_ASSIGN(Type name, expr)`: takes the value of a Result or returns its error.
#define TENON_ASSIGN(target, expr) \
    TENON_ASSIGN_(TENON_CONCAT(tenon_result_, __LINE__), target, expr)
#define TENON_ASSIGN_(result, target, expr) \
    auto result = (expr);                   \
    if (!result.ok()) {                     \
        return result.take_status();        \
    }                                       \
    target = std::move(*result)

/// For our own mistakes only; untrusted input never reaches it. Extra arguments: format and values.
#define TENON_CHECK(cond, ...)                                              \
    do {                                                                    \
        if (!(cond)) [[unlikely]] {                                         \
            ::tenon::detail::check_failed(__FILE__, __LINE__, #cond,        \
                                          ::tenon::format("" __VA_ARGS__)); \
        }                                                                   \
    } while (false)

#ifdef NDEBUG
#define TENON_DCHECK(cond, ...) static_cast<void>(0)
#else
#define TENON_DCHECK(cond, ...) TENON_CHECK(cond, __VA_ARGS__)
#endif
