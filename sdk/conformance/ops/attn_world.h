// SPDX-License-Identifier: MIT
// A small world for attention tests: a history of window rows and compressed rows by slot and
// position, put into rings and pages through the stores, and the plain answer of a row.
#pragma once

#include <cmath>
#include <map>

#include "tenon/ops/attn.h"
#include "tenon/ops/cache.h"
#include "tenon/ops/kvq.h"
#include "tenon/ops/window.h"
#include "tenon/testing/op_fixture.h"

namespace tenon::testing {

struct AttnGeometry {
    int64_t H = 2, D = 64, K = 8;
    int32_t R = 48, window = 32, slots = 3, ratio = 2, rows_per_page = 4;
    RowFormat ring = RowFormat::q8, comp = RowFormat::q4e;
    float scale = 0.125f;
};

class AttnWorld : public OpTest {
  protected:
    AttnGeometry g;

    /// The unquantised window row of a position, the same wherever it is asked for.
    std::vector<float> raw_kv(int32_t slot, int32_t pos) {
        Random random(static_cast<uint64_t>(slot) * 1000003 + static_cast<uint64_t>(pos) * 7 + 1);
        return random.bells(g.D);
    }
    std::vector<float> raw_comp(int32_t slot, int32_t row) {
        Random random(static_cast<uint64_t>(slot) * 999983 + static_cast<uint64_t>(row) * 13 + 5);
        return random.bells(g.D);
    }
    std::vector<float> quantised(RowFormat f, const std::vector<float>& x) {
        KvqQuantize p{.x = bf16({1, g.D}, x), .format = f, .values = zeros(DType::bf16, {1, g.D})};
        run(p);
        return floats(p.values);
    }

    Ring make_ring(uint8_t fill = 0) {
        Ring r;
        r.R = g.R;
        r.width = static_cast<int32_t>(g.D);
        r.format = g.ring;
        if (g.ring == RowFormat::bf16) {
            r.codes = filled(DType::bf16, {g.slots, g.R, g.D}, fill);
        } else {
            r.codes = filled(DType::u8, {g.slots, g.R, g.D}, fill);
            r.scales = filled(DType::u8, {g.slots, g.R, g.D / 32}, fill);
        }
        return r;
    }
    /// Stores window rows [first, last) of a slot.
    void fill_ring(const Ring& ring, int32_t slot, int32_t first, int32_t last, int32_t shift = 0) {
        std::vector<float> kv;
        for (int32_t pos = first; pos < last; ++pos) {
            const std::vector<float> row = raw_kv(slot, pos);
            kv.insert(kv.end(), row.begin(), row.end());
        }
        WindowStore p{bf16({last - first, g.D}, kv), one_segment(slot, first + shift, last - first),
                      ring};
        run(p);
    }
    /// Pages for `rows` compressed rows of every slot; `order` permutes the page numbers.
    Pages make_pages(int32_t rows, uint64_t order = 0, int32_t table_factor = 1) {
        Pages p;
        p.rows_per_page = g.rows_per_page;
        p.ratio = g.ratio;
        p.width = static_cast<int32_t>(g.D);
        p.format = g.comp;
        const int64_t codes = code_bytes(g.comp, g.D) * g.rows_per_page;
        const int64_t scales = scale_bytes(g.comp, g.D) * g.rows_per_page;
        p.codes_at = 256;
        p.scales_at = 256 + (codes + 255) / 256 * 256;
        const int64_t page_bytes = p.scales_at + (scales + 255) / 256 * 256;
        const int32_t each = (rows + g.rows_per_page - 1) / g.rows_per_page;
        std::vector<int32_t> ids;
        for (int32_t i = 0; i < each * g.slots + 2; ++i) {
            ids.push_back(i);
        }
        if (order != 0) {
            Random random(order);
            random.shuffle(ids);
        }
        const int64_t width = int64_t{each + 1} * table_factor;
        std::vector<int32_t> table(static_cast<size_t>(g.slots * width), -1);
        for (int32_t s = 0; s < g.slots; ++s) {
            for (int32_t i = 0; i < each; ++i) {
                table[static_cast<size_t>(s * width + i)] = ids[static_cast<size_t>(s * each + i)];
            }
        }
        p.pool = filled(DType::u8, {each * g.slots + 2, page_bytes}, 0xFF);
        p.table = i32({g.slots, width}, table);
        return p;
    }
    void fill_pages(const Pages& pages, int32_t slot, int32_t rows) {
        if (rows == 0) {
            return;
        }
        std::vector<float> x;
        std::vector<RowInfo> row;
        for (int32_t i = 0; i < rows; ++i) {
            const std::vector<float> r = raw_comp(slot, i);
            x.insert(x.end(), r.begin(), r.end());
            row.push_back({i * g.ratio + g.ratio - 1, slot, 0, 0});
        }
        CacheStore p{bf16({rows, g.D}, x), OpTest::rows(row, {}), pages, RowFormat::q4e};
        run(p);
    }
    /// Quantised window rows of positions, as this call's kv.
    TensorView this_calls_kv(const std::vector<std::pair<int32_t, int32_t>>& slot_pos) {
        std::vector<float> kv;
        for (const auto& at : slot_pos) {
            std::vector<float> row(static_cast<size_t>(g.D), 0.0f);
            if (at.first >= 0) {
                row = quantised(RowFormat::q8, raw_kv(at.first, at.second));
            }
            kv.insert(kv.end(), row.begin(), row.end());
        }
        return bf16({static_cast<int64_t>(slot_pos.size()), g.D}, kv);
    }

    /// softmax with sink over explicit keys, in double.
    std::vector<double> answer(const std::vector<float>& q,
                               const std::vector<std::vector<float>>& keys, float sink) {
        std::vector<double> logit;
        double top = sink;
        for (const auto& key : keys) {
            double sum = 0;
            for (size_t i = 0; i < q.size(); ++i) {
                sum += static_cast<double>(q[i]) * key[i];
            }
            logit.push_back(sum * g.scale);
            top = std::max(top, logit.back());
        }
        std::vector<double> out(q.size(), 0.0);
        if (keys.empty()) {
            return out;
        }
        double total = std::exp(sink - top);
        for (size_t k = 0; k < keys.size(); ++k) {
            const double w = std::exp(logit[k] - top);
            total += w;
            for (size_t i = 0; i < q.size(); ++i) {
                out[i] += w * keys[k][i];
            }
        }
        for (double& x : out) {
            x /= total;
        }
        return out;
    }
    void expect_row(const std::vector<float>& got, size_t at, const std::vector<double>& want,
                    const std::string& what) {
        double largest = 0;
        for (double x : want) {
            largest = std::max(largest, std::fabs(x));
        }
        for (size_t i = 0; i < want.size(); ++i) {
            ASSERT_NEAR(got[at + i], want[i], largest * (0x1p-8 + 0x1p-14) + 1e-30)
                << what << ", channel " << i;
        }
    }
};

}  // namespace tenon::testing
