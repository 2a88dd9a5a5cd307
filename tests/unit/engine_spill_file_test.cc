// SPDX-License-Identifier: MIT
// Spill files: format, damage of every kind, the scan at start, full disks (engine.md 4.5, 7, 9:
// 25).
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "host/engine/spill_tier.h"
#include "tests/fakes/fake_host.h"
#include "tests/unit/host_support.h"

#include <gtest/gtest.h>

namespace tenon::test {
namespace {

namespace fs = std::filesystem;
using namespace engine;
using fakes::FakeHost;

constexpr int64_t kPage = 40'000;  // pages and blocks do not line up
constexpr int64_t kSnapshot = 1234;

class Spill : public ::testing::Test {
  protected:
    void SetUp() override { key_.fill(7); }

    std::unique_ptr<SpillStore> open() {
        auto made = SpillStore::open({dir_.string(), key_, kPage, kSnapshot, 0, 1}, host_);
        EXPECT_TRUE(made.ok()) << made.status().message().view();
        return made.ok() ? std::move(*made) : nullptr;
    }
    static std::vector<uint8_t> noise(size_t n, uint32_t seed) {
        std::mt19937 rng(seed);
        std::vector<uint8_t> bytes(n);
        for (uint8_t& b : bytes) {
            b = static_cast<uint8_t>(rng());
        }
        return bytes;
    }
    SpillFile file_of(int64_t at, int32_t pages, const SpillFile* parent = nullptr,
                      uint64_t salt = 0) {
        SpillFile f;
        f.at = at;
        f.pages = pages;
        SymbolHash hash;
        hash.begin(key_, salt, 0);
        hash.add({symbols_.data(), static_cast<uint64_t>(at)});
        f.lookup = hash.value();
        if (parent != nullptr) {
            f.parent_at = parent->at;
            f.parent = parent->digest;
            f.first_page = parent->pages - 1;
        }
        return f;
    }
    /// Pages first, the snapshot in a piece of its own. The answer to the end.
    SpillEvent store(SpillStore& s, SpillFile* f, uint64_t salt = 0) {
        SpillCommand c;
        SpillEvent answer;
        c.kind = SpillCommandKind::write_begin;
        c.file = *f;
        c.salt = salt;
        c.symbols = {symbols_.data() + f->parent_at, static_cast<uint64_t>(f->at - f->parent_at)};
        if (s.write(c, &answer)) {
            return answer;
        }
        const std::vector<uint8_t> pages = noise(static_cast<size_t>(f->pages * kPage), 1);
        const std::vector<uint8_t> snapshot = noise(kSnapshot, 2);
        for (const std::vector<uint8_t>* bytes : {&pages, &snapshot}) {
            c.kind = SpillCommandKind::write_piece;
            c.from = *bytes;
            EXPECT_TRUE(s.write(c, &answer));
            if (answer.kind == SpillEventKind::write_failed) {
                return answer;
            }
        }
        c.kind = SpillCommandKind::write_end;
        EXPECT_TRUE(s.write(c, &answer));
        f->digest = answer.digest;
        return answer;
    }
    SpillEvent load(SpillStore& s, const std::vector<SpillFile>& chain, int32_t link, int32_t page,
                    int32_t pages, std::vector<uint8_t>* out, uint64_t salt = 0) {
        SpillCommand c;
        SpillEvent answer;
        c.kind = SpillCommandKind::load_begin;
        c.chain = chain;
        c.symbols = symbols_;
        c.salt = salt;
        EXPECT_FALSE(s.read(c, &answer));
        c.kind = SpillCommandKind::read_piece;
        c.link = link;
        c.page = page;
        c.pages = pages;
        c.snapshot = true;
        out->assign(static_cast<size_t>(pages * kPage + kSnapshot), 0);
        c.to = *out;
        EXPECT_TRUE(s.read(c, &answer));
        return answer;
    }
    fs::path path_of(const SpillFile& f) const { return dir_ / spill_file_name(f.lookup, f.at); }
    double removed(const std::string& reason) {
        return host_.value("kv_spill_removed_files_total", "reason=" + reason);
    }

    testing::TempFolder folder_;
    fs::path dir_ = folder_.path();
    FakeHost host_;
    SpillDigest key_{};
    std::vector<int32_t> symbols_ = [] {
        std::vector<int32_t> s(1001);
        for (size_t i = 0; i < s.size(); ++i) {
            s[i] = static_cast<int32_t>(i * 31);
        }
        return s;
    }();
};

TEST_F(Spill, What_was_written_comes_back_after_a_restart) {
    SpillFile first = file_of(501, 3);
    SpillFile second;
    {
        auto s = open();
        EXPECT_EQ(store(*s, &first).kind, SpillEventKind::stored);
        second = file_of(1001, 5, &first);
        EXPECT_EQ(store(*s, &second).kind, SpillEventKind::stored);
    }
    auto s = open();
    ASSERT_EQ(s->found().size, 2U);
    EXPECT_EQ(s->found()[0].at, 501);
    EXPECT_EQ(s->found()[1].parent, s->found()[0].digest);
    EXPECT_EQ(s->found()[1].bytes, static_cast<int64_t>(fs::file_size(path_of(second))));
    const std::vector<SpillFile> chain(s->found().begin(), s->found().end());
    std::vector<uint8_t> out;
    const std::vector<uint8_t> pages = noise(static_cast<size_t>(5 * kPage), 1);
    const std::vector<uint8_t> snapshot = noise(kSnapshot, 2);
    for (int32_t page = 0; page < 5; ++page) {
        for (int32_t n = 0; page + n <= 5; ++n) {
            ASSERT_EQ(load(*s, chain, 1, page, n, &out).kind, SpillEventKind::piece_read);
            EXPECT_TRUE(
                std::equal(out.begin(), out.end() - kSnapshot, pages.begin() + page * kPage));
            EXPECT_TRUE(std::equal(snapshot.begin(), snapshot.end(), out.end() - kSnapshot));
        }
    }
    EXPECT_EQ(load(*s, chain, 0, 0, 3, &out).kind, SpillEventKind::piece_read);
}

TEST_F(Spill, Any_flipped_bit_is_a_miss_and_the_file_is_gone) {
    auto s = open();
    SpillFile f = file_of(501, 3);
    store(*s, &f);
    std::ifstream in(path_of(f), std::ios::binary);
    const std::string good{std::istreambuf_iterator<char>(in), {}};
    std::vector<uint8_t> out;
    const auto write = [&](const std::string& bytes) {
        std::ofstream(path_of(f), std::ios::binary | std::ios::trunc) << bytes;
    };
    std::mt19937 rng(3);
    std::vector<size_t> places;
    for (size_t i = 0; i < 4096; i += 37) {
        places.push_back(i);  // header
    }
    for (size_t i = good.size() - 64; i < good.size(); ++i) {
        places.push_back(i);  // checksums and digest
    }
    for (int i = 0; i < 60; ++i) {
        places.push_back(4096 + rng() % (good.size() - 4096));
    }
    for (const size_t at : places) {
        std::string bad = good;
        bad[at] = static_cast<char>(bad[at] ^ (1 << (rng() % 8)));
        write(bad);
        const SpillEvent e = load(*s, {f}, 0, 0, 3, &out);
        EXPECT_EQ(e.kind, SpillEventKind::read_failed) << "byte " << at;
        EXPECT_TRUE(e.is_gone) << "byte " << at;
        EXPECT_FALSE(fs::exists(path_of(f))) << "byte " << at;
    }
    for (const size_t n : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, size_t{70'000},
                           good.size() - 40, good.size() - 1}) {
        write(good.substr(0, n));
        EXPECT_EQ(load(*s, {f}, 0, 0, 3, &out).kind, SpillEventKind::read_failed) << n << " bytes";
        EXPECT_FALSE(fs::exists(path_of(f))) << n << " bytes";
    }
    write(good + "x");
    EXPECT_EQ(load(*s, {f}, 0, 0, 3, &out).kind, SpillEventKind::read_failed);
    write(good);
    EXPECT_EQ(load(*s, {f}, 0, 0, 3, &out).kind, SpillEventKind::piece_read);
    fs::remove(path_of(f));
    EXPECT_TRUE(load(*s, {f}, 0, 0, 3, &out).is_gone);
    EXPECT_EQ(host_.count_lines("a miss"), 1) << "logged once";
}

TEST_F(Spill, A_file_that_is_gone_or_no_file_is_a_miss) {
    auto s = open();
    SpillFile f = file_of(501, 3);
    std::vector<uint8_t> out;
    SpillEvent e = load(*s, {f}, 0, 0, 3, &out);
    EXPECT_EQ(e.kind, SpillEventKind::read_failed);
    EXPECT_TRUE(e.is_gone);
    fs::create_directory(path_of(f));  // reading it gives an error of the file system
    e = load(*s, {f}, 0, 0, 3, &out);
    EXPECT_EQ(e.kind, SpillEventKind::read_failed);
    EXPECT_TRUE(e.is_gone);
}

TEST_F(Spill, Another_sequence_or_salt_with_the_same_name_is_never_served) {
    auto s = open();
    SpillFile f = file_of(501, 3);
    store(*s, &f);
    std::vector<uint8_t> out;
    SpillEvent e = load(*s, {f}, 0, 0, 3, &out, 9);
    EXPECT_EQ(e.kind, SpillEventKind::read_failed);
    EXPECT_FALSE(e.is_gone);
    symbols_[500] ^= 1;
    EXPECT_EQ(load(*s, {f}, 0, 0, 3, &out).kind, SpillEventKind::read_failed);
    symbols_[500] ^= 1;
    EXPECT_TRUE(fs::exists(path_of(f)));
    EXPECT_EQ(load(*s, {f}, 0, 0, 3, &out).kind, SpillEventKind::piece_read);
    EXPECT_NE(file_of(501, 3, nullptr, 9).lookup, f.lookup);
}

TEST_F(Spill, The_scan_removes_what_is_of_no_use_and_leaves_other_names_alone) {
    SpillFile first = file_of(501, 3);
    {
        auto s = open();
        store(*s, &first);
        SpillFile second = file_of(1001, 5, &first);
        store(*s, &second);
        SpillFile parked = file_of(77, 1);
        parked.is_private = true;
        store(*s, &parked);
        SpillFile whole = file_of(400, 2);
        store(*s, &whole);
    }
    std::ofstream(dir_ / "notes.txt") << "mine";
    std::ofstream(dir_ / "0123.tnkv") << "torn";
    std::ofstream(dir_ / "0123.tnkv.tmp") << "unfinished";
    fs::copy(path_of(first), dir_ / "renamed.tnkv");
    {
        auto s = open();
        EXPECT_EQ(s->found().size, 3U);
        EXPECT_EQ(removed("parked"), 1);
        EXPECT_EQ(removed("damaged"), 3);
        EXPECT_EQ(host_.value("kv_spill_files"), 3);
    }
    fs::remove(path_of(first));
    {
        auto s = open();
        EXPECT_EQ(s->found().size, 1U) << "the second one builds on the first";
        EXPECT_EQ(removed("damaged"), 4);
    }
    key_.fill(8);
    auto s = open();
    EXPECT_EQ(s->found().size, 0U);
    EXPECT_EQ(removed("foreign"), 1);
    EXPECT_TRUE(fs::exists(dir_ / "notes.txt"));
}

TEST_F(Spill, Missing_and_busy_folders_are_refused) {
    const auto refusal = [&](const std::string& dir) {
        auto made = SpillStore::open({dir, key_, kPage, kSnapshot, 0, 1}, host_);
        EXPECT_FALSE(made.ok());
        EXPECT_EQ(made.status().code(), Code::invalid_argument);
        return made.status().message().str();
    };
    EXPECT_NE(refusal((dir_ / "none").string()).find("no such folder"), std::string::npos);
    auto s = open();
    EXPECT_NE(refusal(dir_.string()).find("another process"), std::string::npos);
    s.reset();
    EXPECT_NE(open(), nullptr);
    EXPECT_NE(refusal("/proc/self").find("cannot be written"), std::string::npos);
}

TEST_F(Spill, A_full_disk_ends_writing_with_one_line_and_reading_goes_on) {
    auto s = open();
    SpillFile good = file_of(501, 3);
    store(*s, &good);
    rlimit before{};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    rlimit little = before;
    little.rlim_cur = 100'000;
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &little), 0);
    SpillFile f = file_of(1001, 5);
    SpillEvent e = store(*s, &f);
    EXPECT_EQ(e.kind, SpillEventKind::write_failed);
    EXPECT_TRUE(e.no_writes);
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    EXPECT_EQ(store(*s, &f).kind, SpillEventKind::write_failed);
    EXPECT_FALSE(fs::exists(path_of(f)));
    EXPECT_FALSE(fs::exists(path_of(f).string() + ".tmp"));
    EXPECT_EQ(host_.count_lines("nothing more is written"), 1);
    std::vector<uint8_t> out;
    EXPECT_EQ(load(*s, {good}, 0, 0, 3, &out).kind, SpillEventKind::piece_read);
}

TEST_F(Spill, An_abandoned_file_leaves_nothing_and_its_late_pieces_are_answered) {
    auto s = open();
    SpillCommand c;
    SpillEvent e;
    c.kind = SpillCommandKind::write_begin;
    c.file = file_of(501, 3);
    c.symbols = {symbols_.data(), 501};
    EXPECT_FALSE(s->write(c, &e));
    c.kind = SpillCommandKind::write_abort;
    EXPECT_TRUE(s->write(c, &e));
    EXPECT_EQ(e.kind, SpillEventKind::write_failed);
    EXPECT_FALSE(e.no_writes);
    c.kind = SpillCommandKind::write_piece;
    c.job = 5;
    EXPECT_TRUE(s->write(c, &e));
    EXPECT_EQ(e.kind, SpillEventKind::piece_written);
    EXPECT_EQ(e.job, 5U);
    c.kind = SpillCommandKind::write_end;
    EXPECT_FALSE(s->write(c, &e));
    EXPECT_EQ(std::distance(fs::directory_iterator(dir_), fs::directory_iterator{}), 1);  // lock
}

TEST_F(Spill, Threads_answer_every_piece_in_order) {
    SpillTier tier(open());
    auto wake = std::make_shared<WakeEvent>();
    tier.start(host_, wake);
    SpillFile f = file_of(501, 3);
    SpillCommand c;
    c.file = f;
    c.symbols = {symbols_.data(), 501};
    c.kind = SpillCommandKind::write_begin;
    ASSERT_TRUE(tier.push(c));
    const std::vector<uint8_t> pages = noise(static_cast<size_t>(3 * kPage), 1);
    const std::vector<uint8_t> snapshot = noise(kSnapshot, 2);
    c.kind = SpillCommandKind::write_piece;
    c.job = 1;
    c.from = pages;
    ASSERT_TRUE(tier.push(c));
    c.job = 2;
    c.from = snapshot;
    ASSERT_TRUE(tier.push(c));
    c.kind = SpillCommandKind::write_end;
    c.job = 3;
    ASSERT_TRUE(tier.push(c));
    std::vector<uint64_t> jobs;
    for (int i = 0; i < 1000 && jobs.size() < 3; ++i) {
        wake->announce();
        wake->wait(10'000);
        tier.take([&](const SpillEvent& e) { jobs.push_back(e.job); });
    }
    EXPECT_EQ(jobs, (std::vector<uint64_t>{1, 2, 3}));
    EXPECT_TRUE(tier.stop());
    EXPECT_TRUE(tier.stop());
    EXPECT_TRUE(fs::exists(path_of(f)));
    EXPECT_FALSE(tier.push(c)) << "after the end nothing is taken";
}

TEST_F(Spill, A_disk_that_does_not_answer_is_left_behind_at_the_end) {
    auto s = open();
    SpillFile f = file_of(501, 3);
    store(*s, &f);
    auto wake = std::make_shared<WakeEvent>();
    std::vector<uint8_t> to(static_cast<size_t>(3 * kPage + kSnapshot));
    const std::vector<SpillFile> chain{f};
    // A pipe that nobody writes: opening it waits as a dead disk does.
    fs::remove(path_of(f));
    ASSERT_EQ(::mkfifo(path_of(f).c_str(), 0600), 0);
    {
        SpillTier tier(std::move(s));
        tier.start(host_, wake);
        SpillCommand c;
        c.kind = SpillCommandKind::load_begin;
        c.chain = chain;
        c.symbols = symbols_;
        ASSERT_TRUE(tier.push(c));
        c.kind = SpillCommandKind::read_piece;
        c.pages = 3;
        c.snapshot = true;
        c.to = to;
        ASSERT_TRUE(tier.push(c));

        EXPECT_FALSE(tier.stop(20'000));
        EXPECT_FALSE(tier.stop(20'000));
    }
    EXPECT_EQ(wake.use_count(), 2) << "the reader and what it holds";

    wake->announce();
    const int pipe = ::open(path_of(f).c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_GE(pipe, 0);
    ::close(pipe);
    wake->wait(30'000'000);  // the answer: what the command names is not used any more
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (wake.use_count() > 1 && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
    }
    EXPECT_EQ(wake.use_count(), 1);
}

}  // namespace
}  // namespace tenon::test
