// SPDX-License-Identifier: MIT
// Wire form of plans and results: round trip, canonical form, bit flips, foreign versions
// (engine.md 9, 1 to 4).
#include <gtest/gtest.h>

#include "host/engine/plan_digest.h"
#include "tenon/plan_codec.h"
#include "tests/unit/engine_plans.h"
#include "tests/unit/engine_support.h"

namespace tenon::test {
namespace {

using engine::plan_digest;

struct Message {
    std::vector<uint64_t> words;
    uint64_t size = 0;
    Span<uint8_t> bytes() { return {reinterpret_cast<uint8_t*>(words.data()), size}; }
};

template <class T>
Message encoded(const T& value) {
    Message m;
    m.words.resize(plan::kMaxPlanBytes / 8);
    const Status status =
        plan::encode(value, &plan_digest,
                     {reinterpret_cast<uint8_t*>(m.words.data()), m.words.size() * 8}, &m.size);
    EXPECT_TRUE(status.ok()) << status.message().view();
    m.words.resize((m.size + 7) / 8);
    return m;
}

/// Sets size and digest of a message that a test has edited.
void reseal(Message* m, uint64_t size) {
    m->size = size;
    plan::Header h;
    std::memcpy(&h, m->bytes().data, sizeof h);
    h.total_bytes = static_cast<uint32_t>(size);
    h.digest = 0;
    std::memcpy(m->words.data(), &h, sizeof h);
    h.digest = plan::detail::message_digest(m->bytes(), &plan_digest);
    std::memcpy(m->words.data(), &h, sizeof h);
}

void append_section(Message* m, const plan::SectionHeader& section) {
    const uint64_t at = m->size / 8;
    m->words.resize(at + 2 + section.bytes / 8, 0);
    std::memcpy(&m->words[at], &section, sizeof section);
    plan::Header h;
    std::memcpy(&h, m->bytes().data, sizeof h);
    ++h.sections;
    std::memcpy(m->words.data(), &h, sizeof h);
    reseal(m, m->words.size() * 8);
}

TEST(PlanCodec, Decoding_what_was_encoded_gives_the_same_plan) {
    std::mt19937_64 rng(test_seed());
    for (int i = 0; i < 400; ++i) {
        RandomPlan random(rng);
        Message m = encoded(random.plan);
        EXPECT_EQ(m.size, plan::encoded_bytes(random.plan));

        plan::Decoder decoder;
        StepPlan back;
        const Status status = decoder.decode(m.bytes(), &plan_digest, &back);

        ASSERT_TRUE(status.ok()) << status.message().view();
        EXPECT_TRUE(plan::equal(random.plan, back));
    }
}

TEST(PlanCodec, Encoding_is_canonical) {
    std::mt19937_64 rng(test_seed());
    for (int i = 0; i < 100; ++i) {
        RandomPlan random(rng);
        Message first = encoded(random.plan);
        plan::Decoder decoder;
        StepPlan back;
        ASSERT_TRUE(decoder.decode(first.bytes(), &plan_digest, &back).ok());

        EXPECT_EQ(encoded(back).words, first.words);
    }
}

TEST(PlanCodec, Results_survive_the_round_trip) {
    std::mt19937_64 rng(test_seed());
    for (int i = 0; i < 200; ++i) {
        RandomResult random(rng);
        Message m = encoded(random.result);
        plan::Decoder decoder;
        StepResult back;
        const Status status = decoder.decode(m.bytes(), &plan_digest, &back);

        ASSERT_TRUE(status.ok()) << status.message().view();
        EXPECT_EQ(back.step, random.result.step);
        EXPECT_EQ(back.probe, random.result.probe);
        EXPECT_EQ(back.timing.exchange_wait, random.result.timing.exchange_wait);
        EXPECT_EQ(encoded(back).words, m.words);
    }
}

TEST(PlanCodec, Every_flipped_bit_is_detected) {
    std::mt19937_64 rng(test_seed());
    for (uint64_t i = 0; i < 12; ++i) {
        RandomPlan random(rng);
        Message m = encoded(random.plan);
        plan::Decoder decoder;
        const uint64_t bits = m.size * 8;
        const uint64_t stride = 1 + bits / 20'000;
        for (uint64_t bit = i % stride; bit < bits; bit += stride) {
            m.bytes()[bit / 8] = static_cast<uint8_t>(m.bytes()[bit / 8] ^ (1u << (bit % 8)));
            StepPlan back;
            EXPECT_FALSE(decoder.decode(m.bytes(), &plan_digest, &back).ok()) << "bit " << bit;
            EXPECT_EQ(back.header.step, 0u) << "written in spite of the error";
            m.bytes()[bit / 8] = static_cast<uint8_t>(m.bytes()[bit / 8] ^ (1u << (bit % 8)));
        }
    }
}

TEST(PlanCodec, Any_bytes_with_a_right_digest_give_ok_or_an_error) {
    std::mt19937_64 rng(test_seed());
    int64_t refused = 0, taken = 0;
    for (int i = 0; i < 7'000; ++i) {
        RandomPlan random(rng);
        Message m = encoded(random.plan);
        for (uint64_t edits = 1 + rng() % 4; edits > 0; --edits) {
            const uint64_t at = sizeof(plan::Header) + rng() % (m.size - sizeof(plan::Header) + 1);
            if (at < m.size) {
                m.bytes()[at] = static_cast<uint8_t>(rng());
            }
        }
        reseal(&m, rng() % 4 == 0
                       ? m.size - std::min<uint64_t>(m.size - sizeof(plan::Header), rng() % 64 * 8)
                       : m.size);
        // An own block of exactly that size, so that a sanitizer sees any read outside it.
        const auto block = std::make_unique<uint64_t[]>((m.size + 7) / 8);
        std::memcpy(block.get(), m.words.data(), m.size);
        plan::Decoder decoder;
        StepPlan back;
        const Status status =
            decoder.decode({reinterpret_cast<uint8_t*>(block.get()), m.size}, &plan_digest, &back);
        (status.ok() ? taken : refused) += 1;
        if (status.ok()) {
            EXPECT_TRUE(plan::check(back).ok());
        }
    }
    EXPECT_GT(refused, 300);
    EXPECT_GT(taken, 300);
}

TEST(PlanCodec, Short_and_unaligned_messages_are_refused) {
    std::mt19937_64 rng(1);
    RandomPlan random(rng);
    Message m = encoded(random.plan);
    plan::Decoder decoder;
    StepPlan back;
    for (uint64_t size = 0; size < m.size; size += 8) {
        EXPECT_FALSE(decoder.decode({m.bytes().data, size}, &plan_digest, &back).ok());
    }
    std::vector<uint8_t> shifted(m.size + 8);
    std::memcpy(shifted.data() + 1, m.words.data(), m.size);
    const Status status = decoder.decode({shifted.data() + 1, m.size}, &plan_digest, &back);
    EXPECT_NE(status.message().view().find("aligned"), std::string_view::npos);
}

TEST(PlanCodec, Unknown_optional_sections_are_skipped) {
    std::mt19937_64 rng(test_seed());
    RandomPlan random(rng);
    Message m = encoded(random.plan);
    append_section(&m, {900, 0, 3, 24, 8});

    plan::Decoder decoder;
    StepPlan back;
    ASSERT_TRUE(decoder.decode(m.bytes(), &plan_digest, &back).ok());
    EXPECT_TRUE(plan::equal(random.plan, back));
}

TEST(PlanCodec, Unknown_required_sections_are_refused) {
    std::mt19937_64 rng(test_seed());
    RandomPlan random(rng);
    Message m = encoded(random.plan);
    append_section(&m, {900, plan::kSectionRequired, 3, 24, 8});

    plan::Decoder decoder;
    StepPlan back;
    const Status status = decoder.decode(m.bytes(), &plan_digest, &back);
    EXPECT_EQ(status.code(), Code::unsupported);
    EXPECT_NE(status.message().view().find("section 900"), std::string_view::npos);
}

TEST(PlanCodec, Longer_records_give_the_same_known_fields) {
    std::mt19937_64 rng(test_seed());
    int tried = 0;
    for (int i = 0; i < 200; ++i) {
        RandomPlan random(rng);
        Message m = encoded(random.plan);
        Message longer;
        longer.words.assign(m.words.begin(), m.words.begin() + sizeof(plan::Header) / 8);
        for (uint64_t at = sizeof(plan::Header); at < m.size;) {
            plan::SectionHeader s;
            std::memcpy(&s, m.bytes().data + at, sizeof s);
            const uint64_t extra = s.record_bytes >= 16 ? 8 * (rng() % 3) : 0;
            plan::SectionHeader t = s;
            t.record_bytes = static_cast<uint32_t>(s.record_bytes + extra);
            t.bytes = extra > 0 ? s.count * t.record_bytes : s.bytes;
            tried += extra > 0 ? 1 : 0;
            const uint64_t first = longer.words.size();
            longer.words.resize(first + 2 + t.bytes / 8, 0);
            std::memcpy(&longer.words[first], &t, sizeof t);
            auto* to = reinterpret_cast<uint8_t*>(&longer.words[first + 2]);
            const uint8_t* from = m.bytes().data + at + sizeof s;
            if (extra == 0) {
                std::memcpy(to, from, s.bytes);
            }
            for (uint32_t r = 0; extra > 0 && r < s.count; ++r) {
                std::memcpy(to + r * t.record_bytes, from + r * s.record_bytes, s.record_bytes);
                std::memset(to + r * t.record_bytes + s.record_bytes, 0x5A,
                            extra);  // a later minor's fields
            }
            at += sizeof s + s.bytes;
        }
        plan::Header h;
        std::memcpy(&h, longer.bytes().data, sizeof h);
        h.minor = plan::kMinor + 1;
        std::memcpy(longer.words.data(), &h, sizeof h);
        reseal(&longer, longer.words.size() * 8);

        plan::Decoder decoder;
        StepPlan back;
        const Status status = decoder.decode(longer.bytes(), &plan_digest, &back);
        ASSERT_TRUE(status.ok()) << status.message().view();
        EXPECT_TRUE(plan::equal(random.plan, back));
    }
    EXPECT_GT(tried, 100);
}

TEST(PlanCodec, Another_major_version_is_refused) {
    std::mt19937_64 rng(1);
    RandomPlan random(rng);
    Message m = encoded(random.plan);
    plan::Header h;
    std::memcpy(&h, m.bytes().data, sizeof h);
    h.major = plan::kMajor + 1;
    std::memcpy(m.words.data(), &h, sizeof h);
    reseal(&m, m.size);

    plan::Decoder decoder;
    StepPlan back;
    EXPECT_EQ(decoder.decode(m.bytes(), &plan_digest, &back).code(), Code::unsupported);
}

TEST(PlanCodec, Limits_are_refused_by_name) {
    const auto refusal = [](const StepPlan& p) { return plan::check(p).message().str(); };
    StepPlan p;
    std::vector<plan::Window> windows(257);
    p.windows = windows;
    EXPECT_NE(refusal(p).find("257 windows"), std::string::npos);

    windows.resize(1);
    windows[0].rows = 3;
    const std::vector<int32_t> tokens(2);
    p.windows = windows;
    p.tokens = tokens;
    EXPECT_NE(refusal(p).find("window[0]: tokens"), std::string::npos);
    windows[0].rows = 2;
    EXPECT_EQ(refusal(p), "");
    windows[0].tokens_off = 0xFFFFFFFF;
    EXPECT_NE(refusal(p).find("window[0]: tokens"), std::string::npos);
    windows[0].tokens_off = 0;
    windows[0].reserved = 1;
    EXPECT_NE(refusal(p).find("window[0]"), std::string::npos);
    windows[0].reserved = 0;
    windows[0].forced = 2;
    EXPECT_NE(refusal(p).find("forced"), std::string::npos);

    p = StepPlan();
    std::vector<plan::Chunk> chunks(1);
    chunks[0].end = 20'000;
    p.chunks = chunks;
    EXPECT_NE(refusal(p).find("chunk[0]"), std::string::npos);

    p = StepPlan();
    std::vector<plan::Sampler> samplers(1);
    samplers[0].temperature = std::numeric_limits<float>::quiet_NaN();
    p.samplers = samplers;
    EXPECT_NE(refusal(p).find("sampler[0]: not finite"), std::string::npos);
}

}  // namespace
}  // namespace tenon::test
