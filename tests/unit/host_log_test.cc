// SPDX-License-Identifier: MIT
// The log file: JSON lines whatever the text, levels, rotation, one line per call.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "host/log/log.h"
#include "unit/host_support.h"

namespace tenon {
namespace {

class Log : public ::testing::Test {
  protected:
    ~Log() override { EXPECT_TRUE(log_configure({}).ok()); }

    std::vector<std::string> lines(const std::string& file) const {
        log_flush();
        std::ifstream in(file);
        std::vector<std::string> out;
        for (std::string line; std::getline(in, line);) {
            out.push_back(line);
        }
        return out;
    }

    testing::TempFolder folder_;
    const std::string file_ = folder_.path() + "/t.log";
};

TEST_F(Log, A_file_gets_one_JSON_object_a_line_whatever_the_text) {
    ASSERT_TRUE(log_configure({LogLevel::info, LogFormat::automatic, file_}).ok());
    log_line(LogLevel::info, "engram", "opened rows=7 \"quoted\"\n\x1b[31m next");
    log_line(LogLevel::warn, "a\"b", std::string("broken \xff utf8"));
    log_line(LogLevel::debug, "engram", "too fine");

    const auto got = lines(file_);
    ASSERT_EQ(got.size(), 2u);
    const auto first = nlohmann::json::parse(got[0]);
    EXPECT_EQ(first["level"], "info");
    EXPECT_EQ(first["component"], "engram");
    EXPECT_EQ(first["msg"], "opened rows=7 \"quoted\"\n\x1b[31m next");
    EXPECT_EQ(first["ts"].get<std::string>().size(), 27u);
    const auto second = nlohmann::json::parse(got[1]);
    EXPECT_EQ(second["component"], "a\"b");
    EXPECT_EQ(second["msg"], "broken \xEF\xBF\xBD utf8");
}

TEST_F(Log, Text_keeps_one_line_a_call_and_escapes_control_characters) {
    ASSERT_TRUE(log_configure({LogLevel::info, LogFormat::text, file_}).ok());
    log_line(LogLevel::info, "http", "path=/a\nfaked line\x1b[2J");

    const auto got = lines(file_);
    ASSERT_EQ(got.size(), 1u);
    EXPECT_NE(got[0].find("http: path=/a\\x0afaked line\\x1b[2J"), std::string::npos) << got[0];
}

TEST_F(Log, Reopen_writes_to_a_new_file_after_rotation) {
    ASSERT_TRUE(log_configure({LogLevel::info, LogFormat::text, file_}).ok());
    log_line(LogLevel::info, "a", "before");
    std::filesystem::rename(file_, file_ + ".1");
    log_reopen();
    log_line(LogLevel::info, "a", "after");

    EXPECT_EQ(lines(file_ + ".1").size(), 1u);
    ASSERT_EQ(lines(file_).size(), 1u);
    EXPECT_NE(lines(file_)[0].find("after"), std::string::npos);
}

TEST_F(Log, A_file_that_cannot_be_opened_is_an_error_and_the_old_one_stays) {
    ASSERT_TRUE(log_configure({LogLevel::info, LogFormat::text, file_}).ok());
    const std::string inside = file_ + "/t.log";  // a folder that is a file
    const Status status = log_configure({LogLevel::info, LogFormat::text, inside});
    log_line(LogLevel::info, "a", "still here");

    EXPECT_EQ(status.code(), Code::io);
    EXPECT_NE(status.message().str().find("log.file " + inside), std::string::npos);
    EXPECT_EQ(lines(file_).size(), 1u);
}

TEST_F(Log, Threads_write_whole_lines_while_the_file_is_reopened) {
    ASSERT_TRUE(log_configure({LogLevel::info, LogFormat::json, file_}).ok());
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([] {
            for (int i = 0; i < 200; ++i) {
                log_line(LogLevel::info, "worker", "line");
            }
        });
    }
    for (int i = 0; i < 20; ++i) {
        log_reopen();
    }
    for (std::thread& t : threads) {
        t.join();
    }

    const auto got = lines(file_);
    EXPECT_EQ(got.size(), 800u);
    for (const std::string& line : got) {
        EXPECT_TRUE(nlohmann::json::accept(line)) << line;
    }
}

}  // namespace
}  // namespace tenon
