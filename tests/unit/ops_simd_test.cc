// SPDX-License-Identifier: MIT
// SIMD kernels of the CPU against the reference (tolerances of their headers), over thread counts,
// and over targets.
#include <gtest/gtest.h>

#include <hwy/targets.h>

#include <cmath>
#include <memory>

#include "common/simd.h"
#include "device/device.h"
#include "tenon/numeric.h"
#include "tenon/ops/attn.h"
#include "tenon/ops/draft.h"
#include "tenon/ops/engram.h"
#include "tenon/ops/index.h"
#include "tenon/ops/kvq.h"
#include "tenon/ops/linear.h"
#include "tenon/ops/mhc.h"
#include "tenon/ops/norm.h"
#include "tenon/ops/rope.h"
#include "tenon/testing/op_fixture.h"

namespace tenon::testing {
namespace {

/// A CPU device with memory for one test. The same seed gives the same data on every machine.
class Machine {
  public:
    Machine(int64_t threads, bool reference)
        : device_(new cpu::CpuDevice(nullptr, {threads, reference})) {
        EXPECT_TRUE(device_->create_stream({.name = "t"}, stream_.out()).ok());
    }
    ~Machine() {
        buffers_.clear();
        stream_.reset();
        device_->release();
    }
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;

    TensorView zeros(DType t, std::vector<int64_t> shape) {
        TensorView v;
        v.dtype = t;
        v.rank = static_cast<uint16_t>(shape.size());
        int64_t stride = 1;
        for (int i = v.rank - 1; i >= 0; --i) {
            v.shape[i] = shape[static_cast<size_t>(i)];
            v.stride[i] = stride;
            stride *= v.shape[i];
        }
        Ref<Buffer> b;
        EXPECT_TRUE(device_->allocate({.bytes = v.bytes(), .tag = "t"}, b.out()).ok());
        v.data = b->data();
        buffers_.push_back(std::move(b));
        return v;
    }
    TensorView bells(DType t, std::vector<int64_t> shape, uint64_t seed, float scale = 1) {
        TensorView v = zeros(t, std::move(shape));
        Random random(seed);
        for (int64_t i = 0; i < v.elements(); ++i) {
            const float x = random.bell() * scale;
            if (t == DType::bf16) {
                v.as<uint16_t>()[i] = f32_to_bf16(x);
            } else {
                v.as<float>()[i] = x;
            }
        }
        return v;
    }
    TensorView codes(std::vector<int64_t> shape, uint64_t seed, uint32_t limit) {
        TensorView v = zeros(DType::u8, std::move(shape));
        Random random(seed);
        for (int64_t i = 0; i < v.elements(); ++i) {
            v.as<uint8_t>()[i] = static_cast<uint8_t>(random.below(limit));
        }
        return v;
    }
    TensorView ints(std::vector<int64_t> shape, const std::function<int32_t(int64_t)>& at) {
        TensorView v = zeros(DType::i32, std::move(shape));
        for (int64_t i = 0; i < v.elements(); ++i) {
            v.as<int32_t>()[i] = at(i);
        }
        return v;
    }
    /// T rows as segments of `each` rows, one slot a segment, from pos0.
    Rows rows(int64_t T, int64_t each, int32_t pos0) {
        std::vector<RowInfo> row;
        std::vector<SegInfo> seg;
        for (int64_t t = 0; t < T; t += each) {
            const auto n = static_cast<int32_t>(std::min(each, T - t));
            const auto s = static_cast<int32_t>(seg.size());
            for (int32_t i = 0; i < n; ++i) {
                row.push_back({pos0 + i, s, s, 0});
            }
            seg.push_back({s, static_cast<int32_t>(t), n, pos0, {0, 0}, 0, 0});
        }
        const auto S = static_cast<int64_t>(seg.size());
        const TensorView r = zeros(DType::u8, {T, sizeof(RowInfo)});
        const TensorView s = zeros(DType::u8, {S, sizeof(SegInfo)});
        std::memcpy(r.data, row.data(), row.size() * sizeof(RowInfo));
        std::memcpy(s.data, seg.data(), seg.size() * sizeof(SegInfo));
        return {r, s, T, S};
    }
    /// One row of `rows` as a call of its own.
    Rows single(const Rows& all, int64_t t) {
        RowInfo row = all.row.as<const RowInfo>()[t];
        SegInfo seg = all.seg.as<const SegInfo>()[row.seg];
        row.seg = 0;
        seg.row0 = 0;
        const TensorView r = zeros(DType::u8, {1, sizeof(RowInfo)});
        const TensorView s = zeros(DType::u8, {1, sizeof(SegInfo)});
        std::memcpy(r.data, &row, sizeof row);
        std::memcpy(s.data, &seg, sizeof seg);
        return {r, s, 1, 1};
    }
    template <class P>
    void run(P p) {
        OpBinder binder({device_});
        OpFn<P> fn;
        binder.bind(&fn, Regime::decode);
        ASSERT_TRUE(fn);
        if constexpr (requires { p.scratch; }) {
            p.scratch = zeros(DType::u8, {std::max<int64_t>(fn.scratch(p), 1)});
            std::memset(p.scratch.data, 0xFF, static_cast<size_t>(p.scratch.bytes()));
        }
        const Status s = fn(p, *stream_);
        ASSERT_TRUE(s.ok()) << s.message().view();
    }

  private:
    cpu::CpuDevice* device_;
    Ref<Stream> stream_;
    std::vector<Ref<Buffer>> buffers_;
};

using Output = std::vector<float>;

Output values(const TensorView& v) {
    Output out;
    for (int64_t i = 0; i < v.elements(); ++i) {
        out.push_back(v.dtype == DType::bf16  ? bf16_to_f32(v.as<uint16_t>()[i])
                      : v.dtype == DType::f32 ? v.as<float>()[i]
                                              : static_cast<float>(v.as<int32_t>()[i]));
    }
    return out;
}

Output join(Output a, const Output& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
}

/// One op on fixed data, large enough that several threads share it.
struct Case {
    const char* name;
    std::function<Output(Machine&)> run;
    /// Largest difference allowed between reference and SIMD at element i (both outputs are given).
    std::function<float(const Output& reference, size_t i)> tolerance;
};

float bf16_ulp(float x) {
    return std::max(std::fabs(x), 0x1p-100f) * 0x1p-7f;
}

std::vector<Case> cases() {
    std::vector<Case> out;
    for (int64_t T : {1, 70}) {
        out.push_back({"linear.plain",
                       [T](Machine& m) {
                           LinearPlain p;
                           p.x = m.bells(DType::bf16, {T, 1000}, 1);
                           p.w = m.bells(DType::f32, {300, 1000}, 2);
                           p.y = m.zeros(DType::f32, {T, 300});
                           m.run(p);
                           return values(p.y);
                       },
                       // (K / 16 + 5) 2^-24 times the sum of products: 1000 products of about 4/3.
                       [](const Output&, size_t) { return 68 * 0x1p-24f * 1500.0f; }});
        out.push_back({"norm.rms",
                       [T](Machine& m) {
                           NormRms p{m.bells(DType::bf16, {T, 5000}, 3),
                                     m.bells(DType::bf16, {5000}, 4),
                                     m.zeros(DType::bf16, {T, 5000}), 1e-20f};
                           m.run(p);
                           return values(p.out);
                       },
                       [](const Output& r, size_t i) { return bf16_ulp(r[i]); }});
        out.push_back({"mhc",
                       [T](Machine& m) {
                           const int64_t d = 1296;
                           MhcMix p;
                           p.h = m.bells(DType::bf16, {T, 4, d}, 5);
                           p.fn = m.bells(DType::f32, {24, 4 * d}, 6, 0.02f);
                           p.scale = m.bells(DType::f32, {3}, 7);
                           p.base = m.bells(DType::f32, {24}, 8);
                           p.pre = m.zeros(DType::f32, {T, 4});
                           p.post = m.zeros(DType::f32, {T, 4});
                           p.comb = m.zeros(DType::f32, {T, 4, 4});
                           m.run(p);
                           return join(values(p.pre), join(values(p.post), values(p.comb)));
                       },
                       [](const Output&, size_t) { return 1e-5f; }});
        out.push_back(
            {"mhc streams",
             [T](Machine& m) {
                 const int64_t d = 2064;
                 MhcCollapse c{m.bells(DType::bf16, {T, 4, d}, 9), m.bells(DType::f32, {T, 4}, 10),
                               m.zeros(DType::bf16, {T, d})};
                 m.run(c);
                 MhcExpand e{m.bells(DType::f32, {T, d}, 11), c.h, m.bells(DType::f32, {T, 4}, 12),
                             m.bells(DType::f32, {T, 4, 4}, 13), m.zeros(DType::bf16, {T, 4, d})};
                 m.run(e);
                 return join(values(c.out), values(e.out));
             },
             [](const Output&, size_t) { return 0.0f; }});
        out.push_back({"rope.turn",
                       [T](Machine& m) {
                           RopeTurn p{m.bells(DType::bf16, {T, 64, 128}, 14),
                                      m.bells(DType::f32, {T, 72}, 15), true,
                                      m.zeros(DType::bf16, {T, 64, 128})};
                           m.run(p);
                           return values(p.out);
                       },
                       [](const Output&, size_t) { return 0.0f; }});
        out.push_back({"engram.gate",
                       [T](Machine& m) {
                           const int64_t d = 1040;
                           EngramGate p;
                           p.kv = m.bells(DType::f32, {T, 5 * d}, 16);
                           p.h = m.bells(DType::bf16, {T, 4, d}, 17);
                           p.q_weight = m.bells(DType::bf16, {4, d}, 18);
                           p.k_weight = m.bells(DType::bf16, {4, d}, 19);
                           p.rows = m.rows(T, 1, 3);
                           m.run(p);
                           return values(p.h);
                       },
                       [](const Output& r, size_t i) { return bf16_ulp(r[i]) + 1e-4f; }});
        out.push_back(
            {"attn.sparse",
             [T](Machine& m) {
                 const int64_t H = 20, D = 128, K = 200;
                 AttnSparse p;
                 p.q = m.bells(DType::bf16, {T, H, D}, 20);
                 p.kv = m.bells(DType::bf16, {T, D}, 21);
                 p.ring.R = 160;
                 p.ring.width = static_cast<int32_t>(D);
                 p.ring.format = RowFormat::q8;
                 p.ring.codes = m.codes({T, 160, D}, 22, 0x7F);
                 p.ring.scales = m.zeros(DType::u8, {T, 160, D / 32});
                 std::memset(p.ring.scales.data, 121, static_cast<size_t>(p.ring.scales.bytes()));
                 p.comp.rows_per_page = 64;
                 p.comp.ratio = 1;
                 p.comp.width = static_cast<int32_t>(D);
                 p.comp.format = RowFormat::q4e;
                 p.comp.scales_at = 64 * D / 2;
                 p.comp.pool = m.codes({8, 64 * (D / 2 + D / 16)}, 23, 0x50);
                 p.comp.table =
                     m.ints({T, 8}, [](int64_t i) { return static_cast<int32_t>(i * 5 % 8); });
                 p.sel = m.ints({T, K}, [](int64_t i) { return static_cast<int32_t>(i % K * 2); });
                 p.count = m.ints({T}, [](int64_t i) { return static_cast<int32_t>(K - i % 100); });
                 p.sink = m.bells(DType::f32, {H}, 24);
                 p.scale = 0.05f;
                 p.window = 128;
                 p.rows = m.rows(T, 1, 700);
                 p.out = m.zeros(DType::bf16, {T, H, D});
                 m.run(p);
                 return values(p.out);
             },
             [](const Output& r, size_t i) {
                 // 2^-7 of the row's largest |o|; rows of 128 channels.
                 float most = 0;
                 for (size_t j = i / 128 * 128; j < i / 128 * 128 + 128; ++j) {
                     most = std::max(most, std::fabs(r[j]));
                 }
                 return most * 0x1p-7f;
             }});
        out.push_back({"index.score",
                       [T](Machine& m) {
                           const int64_t Hi = 10, Di = 128, N = 700;
                           KvqQuantize q;
                           q.x = m.bells(DType::bf16, {T, Hi * Di}, 25);
                           q.format = RowFormat::q4u;
                           q.values = m.zeros(DType::bf16, {T, Hi * Di});
                           m.run(q);
                           IndexScore p;
                           p.iq = make_view(q.values.data, DType::bf16, {T, Hi, Di});
                           p.w = m.bells(DType::bf16, {T, Hi}, 26);
                           p.keys.rows_per_page = 128;
                           p.keys.ratio = 2;
                           p.keys.width = 128;
                           p.keys.format = RowFormat::q4u;
                           p.keys.scales_at = 128 * 64;
                           p.keys.pool = m.codes({9, 128 * 68}, 27, 256);
                           for (int64_t page = 0; page < 9; ++page) {
                               for (int64_t i = 0; i < 128 * 4; ++i) {
                                   p.keys.pool.row<uint8_t>(page)[128 * 64 + i] =
                                       static_cast<uint8_t>(120 + i % 8);
                               }
                           }
                           p.keys.table = m.ints(
                               {T, 8}, [](int64_t i) { return static_cast<int32_t>(i * 7 % 9); });
                           p.rows = m.rows(T, 7, 1300);
                           p.out = m.zeros(DType::f32, {T, N});
                           m.run(p);
                           IndexScore c = p;
                           c.cand = m.ints({T, 20}, [](int64_t i) {
                               return static_cast<int32_t>(i % 20 * 4 - (i % 20 == 9 ? 99 : 0));
                           });
                           c.out = m.zeros(DType::f32, {T, 160});
                           m.run(c);
                           return join(values(p.out), values(c.out));
                       },
                       [](const Output&, size_t) { return 0.0f; }});
        out.push_back(
            {"draft.step",
             [T](Machine& m) {
                 const int64_t S = std::min<int64_t>(T, 9), V = 3001, r = 96;
                 DraftStep p;
                 p.base = m.bells(DType::f32, {S, V + 3}, 28);
                 p.base.shape[1] = V;
                 p.prev = m.ints({S}, [](int64_t i) { return static_cast<int32_t>(i * 3); });
                 p.embed = m.bells(DType::bf16, {50, r}, 29, 0.1f);
                 p.head = m.bells(DType::bf16, {V, r}, 30);
                 p.rows = m.rows(S, 1, 9);
                 p.best = m.zeros(DType::u8, {S, sizeof(DraftBest)});
                 std::vector<SampleParams> params(static_cast<size_t>(S));
                 for (size_t i = 0; i < params.size(); ++i) {
                     params[i].temperature = i % 2 == 0 ? 0.0f : 0.8f;
                     params[i].seed = i;
                 }
                 p.params = m.zeros(DType::u8, {S, sizeof(SampleParams)});
                 std::memcpy(p.params.data, params.data(), params.size() * sizeof(SampleParams));
                 m.run(p);
                 Output o;
                 for (int64_t i = 0; i < S; ++i) {
                     o.push_back(p.best.as<DraftBest>()[i].value);
                     o.push_back(static_cast<float>(p.best.as<DraftBest>()[i].id));
                 }
                 return o;
             },
             [](const Output&, size_t i) { return i % 2 == 0 ? 1e-4f : 0.0f; }});
        out.push_back({"sample.draw",
                       [T](Machine& m) {
                           const int64_t V = 5000;
                           SampleDraw p;
                           p.logits = m.bells(DType::f32, {T, V}, 31, 3);
                           std::vector<SampleParams> params(static_cast<size_t>(T));
                           for (size_t i = 0; i < params.size(); ++i) {
                               params[i].temperature = 0.1f * static_cast<float>(i % 12);
                               params[i].top_p = i % 3 == 0 ? 0.9f : 1.0f;
                               params[i].top_k = i % 5 == 0 ? 40 : 0;
                               params[i].min_p = i % 7 == 0 ? 0.02f : 0.0f;
                               params[i].seed = i * 77;
                           }
                           p.params = m.zeros(DType::u8, {T, sizeof(SampleParams)});
                           std::memcpy(p.params.data, params.data(),
                                       params.size() * sizeof(SampleParams));
                           p.token = m.zeros(DType::i32, {T});
                           p.logprob = m.zeros(DType::f32, {T});
                           m.run(p);
                           return join(values(p.token), values(p.logprob));
                       },
                       [](const Output& r, size_t i) { return i < r.size() / 2 ? 0.0f : 2e-6f; }});
    }
    return out;
}

TEST(OpsSimd, Agrees_with_the_reference) {
    if (!cpu::simd_usable()) {
        GTEST_SKIP() << "no fused multiply-add target on this machine";
    }
    for (const Case& c : cases()) {
        Machine reference(1, true);
        Machine fast(1, false);
        const Output want = c.run(reference);
        const Output got = c.run(fast);
        ASSERT_EQ(got.size(), want.size()) << c.name;
        for (size_t i = 0; i < got.size(); ++i) {
            if (std::isinf(want[i])) {
                ASSERT_EQ(got[i], want[i]) << c.name << " at " << i;
                continue;
            }
            ASSERT_NEAR(got[i], want[i], c.tolerance(want, i)) << c.name << " at " << i;
        }
    }
}

// Another cut of the key list changes a f32 sum by a unit in the last place, which one bf16 result
// in some 10^5 shows: so this compares 10^6.
TEST(OpsSimd, Attention_of_a_row_is_the_same_alone_and_among_a_hundred) {
    if (!cpu::simd_usable()) {
        GTEST_SKIP() << "no fused multiply-add target on this machine";
    }
    const int64_t T = 100, H = 20, D = 512, K = 100;
    Machine m(2, false);
    AttnSparse p;
    p.q = m.bells(DType::bf16, {T, H, D}, 40);
    p.kv = m.bells(DType::bf16, {T, D}, 41);
    p.ring = {
        m.bells(DType::bf16, {T, 144, D}, 42), {}, 144, static_cast<int32_t>(D), RowFormat::bf16};
    p.comp.pool = m.zeros(DType::u8, {4, 64 * D * 2});
    const TensorView keys = m.bells(DType::bf16, {4 * 64, D}, 43);
    std::memcpy(p.comp.pool.data, keys.data, static_cast<size_t>(keys.bytes()));
    p.comp.table = m.ints({T, 4}, [](int64_t i) { return static_cast<int32_t>((i + i / 4) % 4); });
    p.comp.rows_per_page = 64;
    p.comp.width = static_cast<int32_t>(D);
    p.sel = m.ints({T, K}, [&](int64_t i) { return static_cast<int32_t>(i % K * 2); });
    p.count = m.ints({T}, [&](int64_t i) { return static_cast<int32_t>(K - i % 50); });
    p.sink = m.bells(DType::f32, {H}, 44);
    p.scale = 1.0f / 64;
    p.window = 128;
    p.rows = m.rows(T, 1, 500);
    p.out = m.zeros(DType::bf16, {T, H, D});
    m.run(p);
    const Output together = values(p.out);
    for (int64_t t = 0; t < T; ++t) {
        AttnSparse one = p;
        one.q = p.q.rows(t, 1);
        one.kv = p.kv.rows(t, 1);
        one.sel = p.sel.rows(t, 1);
        one.count = m.ints({1}, [&](int64_t) { return static_cast<int32_t>(K - t % 50); });
        one.rows = m.single(p.rows, t);
        one.out = m.zeros(DType::bf16, {1, H, D});
        m.run(one);
        const Output alone = values(one.out);
        ASSERT_EQ(
            std::memcmp(alone.data(), together.data() + t * H * D, alone.size() * sizeof(float)), 0)
            << "row " << t;
    }
}

TEST(OpsSimd, Results_do_not_depend_on_the_number_of_threads) {
    for (const bool reference : {true, false}) {
        for (const Case& c : cases()) {
            Machine one(1, reference);
            const Output want = c.run(one);
            for (int64_t threads : {2, 3, 8}) {
                Machine many(threads, reference);
                const Output got = c.run(many);
                ASSERT_EQ(std::memcmp(got.data(), want.data(), want.size() * sizeof(float)), 0)
                    << c.name << " with " << threads << " threads"
                    << (reference ? ", reference" : ", SIMD");
            }
        }
    }
}

TEST(OpsSimd, All_targets_of_this_machine_give_equal_bits) {
    const int64_t supported = hwy::SupportedTargets();
    std::vector<std::pair<int64_t, const char*>> targets;
    for (const auto& t : {std::pair<int64_t, const char*>{HWY_AVX3, "avx3"}, {HWY_AVX2, "avx2"}}) {
        if ((supported & t.first) != 0) {
            targets.push_back(t);
        }
    }
    if (targets.size() < 2) {
        GTEST_SKIP() << "fewer than two fused multiply-add targets here";
    }
    for (const Case& c : cases()) {
        Output first;
        for (const auto& t : targets) {
            hwy::SetSupportedTargetsForTest(t.first);
            hwy::GetChosenTarget().Update(hwy::SupportedTargets());
            ASSERT_NE(std::string(cpu::simd_arch()).find(t.second), std::string::npos);
            Machine m(1, false);
            const Output got = c.run(m);
            if (first.empty()) {
                first = got;
            }
            EXPECT_EQ(std::memcmp(got.data(), first.data(), first.size() * sizeof(float)), 0)
                << c.name << " on " << t.second;
        }
        hwy::SetSupportedTargetsForTest(0);
        hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    }
}

}  // namespace
}  // namespace tenon::testing
