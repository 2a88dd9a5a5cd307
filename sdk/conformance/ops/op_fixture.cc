// SPDX-License-Identifier: MIT
// The op fixture: memory, transfers, and the row-invariance recipe.
#include "tenon/testing/op_fixture.h"

#include <cstring>

namespace tenon::testing {

void PrintTo(const OpProvider& provider, std::ostream* out) {
    *out << provider.name;
}

Status OpBench::start(const OpProvider& provider) {
    TENON_TRY(provider.create(object_.out()));
    device_ = facet_of<Device>(object_.get());
    table_ = facet_of<OpTable>(object_.get());
    if (device_ == nullptr || table_ == nullptr) {
        return error(Code::unsupported, "{}: lacks the facet {}", provider.name,
                     device_ == nullptr ? Device::kFacet : OpTable::kFacet);
    }
    return device_->create_stream({.name = "test"}, stream_.out());
}

void OpTest::SetUp() {
    if (!GetParam().unusable.empty()) {
        GTEST_SKIP() << GetParam().name << " is not usable here: " << GetParam().unusable;
    }
    const Status s = start(GetParam());
    ASSERT_TRUE(s.ok()) << s.message().view();
}

TensorView OpBench::zeros(DType dtype, std::vector<int64_t> shape) {
    TensorView v;
    v.dtype = dtype;
    v.rank = static_cast<uint16_t>(shape.size());
    int64_t stride = 1;
    for (int i = v.rank - 1; i >= 0; --i) {
        v.shape[i] = shape[static_cast<size_t>(i)];
        v.stride[i] = stride;
        stride *= v.shape[i];
    }
    Ref<Buffer> buffer;
    const Status s = device_->allocate({.bytes = v.bytes(), .tag = "test"}, buffer.out());
    EXPECT_TRUE(s.ok()) << s.message().view();
    if (!s.ok()) {
        return v;
    }
    v.data = buffer->data();
    v.place = buffer->place();
    buffers_.push_back(std::move(buffer));
    return v;
}

TensorView OpBench::filled(DType dtype, std::vector<int64_t> shape, uint8_t fill) {
    TensorView v = zeros(dtype, std::move(shape));
    const std::vector<uint8_t> data(static_cast<size_t>(v.bytes()), fill);
    write(v, data.data());
    return v;
}

namespace {

// The same elements, dense, on the host.
TensorView host_twin(const TensorView& v, void* data) {
    TensorView h = v;
    h.data = data;
    h.place = Place::host;
    int64_t stride = 1;
    for (int i = h.rank - 1; i >= 0; --i) {
        h.stride[i] = stride;
        stride *= h.shape[i];
    }
    return h;
}

}  // namespace

void OpBench::write(const TensorView& dst, const void* host_data) {
    if (dst.elements() == 0) {
        return;
    }
    const TensorView src = host_twin(dst, const_cast<void*>(host_data));
    const Status s = device_->copy(dst, src, stream());
    ASSERT_TRUE(s.ok()) << s.message().view();
    const Status done = device_->synchronize(stream());
    ASSERT_TRUE(done.ok()) << done.message().view();
}

void OpBench::read(void* host_data, const TensorView& src) {
    if (src.elements() == 0) {
        return;
    }
    const Status s = device_->copy(host_twin(src, host_data), src, stream());
    ASSERT_TRUE(s.ok()) << s.message().view();
    const Status done = device_->synchronize(stream());
    ASSERT_TRUE(done.ok()) << done.message().view();
}

TensorView OpBench::bf16(std::vector<int64_t> shape, const std::vector<float>& values) {
    std::vector<uint16_t> bits(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
        bits[i] = f32_to_bf16(values[i]);
    }
    return put(DType::bf16, std::move(shape), bits);
}

TensorView OpBench::f32(std::vector<int64_t> shape, const std::vector<float>& values) {
    return put(DType::f32, std::move(shape), values);
}

TensorView OpBench::upload(const TensorView& host) {
    TensorView v = zeros(host.dtype, {host.shape, host.shape + host.rank});
    write(v, host.data);
    return v;
}

Rows OpBench::rows(const std::vector<RowInfo>& row, const std::vector<SegInfo>& seg) {
    Rows r;
    r.row = structs(row);
    r.seg = structs(seg);
    r.T = static_cast<int64_t>(row.size());
    r.S = static_cast<int64_t>(seg.size());
    return r;
}

Rows OpBench::one_segment(int32_t slot, int32_t pos0, int32_t n, uint32_t flags) {
    std::vector<RowInfo> row;
    for (int32_t i = 0; i < n; ++i) {
        row.push_back({pos0 + i, slot, 0, flags});
    }
    return rows(row, {SegInfo{slot, 0, n, pos0, {0, 0}, 0, 0}});
}

std::vector<float> OpBench::floats(const TensorView& v) {
    if (v.dtype == DType::f32) {
        return get<float>(v);
    }
    EXPECT_EQ(v.dtype, DType::bf16);
    std::vector<float> out;
    for (uint16_t bits : get<uint16_t>(v)) {
        out.push_back(bf16_to_f32(bits));
    }
    return out;
}

int64_t bf16_ulps(float a, float b) {
    const auto order = [](float x) {
        const auto bits = static_cast<int32_t>(f32_to_bf16(x));
        return bits & 0x8000 ? -(bits & 0x7FFF) : bits;
    };
    return std::abs(int64_t{order(a)} - order(b));
}

namespace {

// Runs one list and compares every live, ordinary row with the row alone.
void compare(const RunRows& run, const std::vector<int>& list, const Variation& variation,
             std::vector<std::vector<uint8_t>>& alone, const std::string& what) {
    const auto out = run(list, variation);
    ASSERT_EQ(out.size(), list.size()) << what;
    for (size_t i = 0; i < list.size(); ++i) {
        if (list[i] < 0) {
            continue;
        }
        auto& expected = alone[static_cast<size_t>(list[i])];
        if (expected.empty()) {
            expected = run({list[i]}, {})[0];
        }
        ASSERT_EQ(out[i], expected) << what << ": T = " << list.size() << ", place " << i
                                    << ", row " << list[i] << " differs from the row alone";
    }
}

}  // namespace

void expect_row_invariant(const RunRows& run, int64_t largest_T) {
    std::vector<int64_t> sizes;
    for (int64_t n = 1; n <= 17; ++n) {
        sizes.push_back(n);
    }
    for (int64_t n : {31, 32, 33, 63, 64, 65, 127, 128, 129, 512}) {
        if (n <= largest_T) {
            sizes.push_back(n);
        }
    }
    std::vector<std::vector<uint8_t>> alone(static_cast<size_t>(largest_T));
    Random random(41);
    for (int64_t n : sizes) {
        std::vector<int> list;
        for (int64_t i = 0; i < n; ++i) {
            list.push_back(static_cast<int>(i));
        }
        compare(run, list, {}, alone, "in order");
        random.shuffle(list);
        compare(run, list, {}, alone, "shuffled");
        std::vector<int> mixed;
        for (int row : list) {
            if (random.below(4) == 0) {
                mixed.push_back(random.below(2) == 0 ? kDeadRow : kHugeRow);
            }
            mixed.push_back(row);
        }
        compare(run, mixed, {}, alone, "with dead and huge rows between");
        if (::testing::Test::HasFatalFailure()) {
            return;
        }
    }
    std::vector<int> list;
    for (int i = 0; i < 9; ++i) {
        list.push_back(i);
    }
    compare(run, list, {.permuted_pages = true}, alone, "pages permuted");
    compare(run, list, {.ring_turned = true}, alone, "ring turned");
    compare(run, list, {.wide_table = true}, alone, "page table twice as wide");
    compare(run, list, {.other_slots = true}, alone, "other slots rewritten");
}

}  // namespace tenon::testing
