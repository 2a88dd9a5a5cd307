// SPDX-License-Identifier: MIT
// Which experts a call needs, and for which of its rows.
#pragma once

#include "experts_exact.h"

namespace tenon::exl3::cuda {

/// The expert of an entry; false if nobody or another rank has it.
__device__ __forceinline__ bool find_expert(const ExpertStep& c, int entry, int* id) {
    const int row = entry / (c.k + 1);
    const int slot = entry % (c.k + 1);
    *id = slot == c.k ? c.experts : c.ids[row * c.k + slot];
    return *id >= 0 && (slot == c.k || *id < c.experts) && c.down[*id].words != nullptr;
}

// A group's matrices: gate, up, down.
struct ListPlace {
    ExpertItem* items[3];
};
__device__ __forceinline__ ListPlace place_of(const ExpertStep& c, int group) {
    ExpertItem* up = c.scratch.items + 2 * group;
    return {{up, up + 1, c.scratch.items + 2 * most_groups(c.rows, c.k) + group}};
}
__device__ __forceinline__ void write_group(const ExpertStep& c, const ListPlace& to, int id,
                                            int rows) {
    const Weight* tables[3] = {c.gate, c.up, c.down};
#pragma unroll
    for (int p = 0; p < 3; ++p) {
        const Weight& w = tables[p][id];
        to.items[p]->words = w.words;
        to.items[p]->twice_k = w.twice_k;
        to.items[p]->rows = rows;
    }
}
__device__ __forceinline__ void write_entry(const ListPlace& to, int place, int entry) {
#pragma unroll
    for (int p = 0; p < 3; ++p) {
        to.items[p]->entry[place] = entry;
    }
}

/// Entries of one expert, four at a time, are a group. One block; one thread a routed entry, one
/// more for the shared expert.
__device__ __forceinline__ void make_list(const ExpertStep& c) {
    constexpr int kMost = kExpertTokens * kMostSlots;
    __shared__ int ids[kMost];     // -1: nobody here
    __shared__ int groups[kMost];  // of an expert at its first entry, else 0
    const int routed = c.rows * c.k;
    const int i = static_cast<int>(threadIdx.x);
    const int entry = c.k == 0 ? 0 : i / c.k * (c.k + 1) + i % c.k;
    int id = -1;
    if (i < routed) {
        if (!find_expert(c, entry, &id)) {
            id = -1;
        }
        ids[i] = id;
    }
    __syncthreads();
    int before = 0, count = 0, first = i;
    if (id >= 0) {
        for (int j = 0; j < routed; ++j) {
            if (ids[j] == id) {
                first = min(first, j);
                before += j < i ? 1 : 0;
                ++count;
            }
        }
    }
    if (i < routed) {
        groups[i] = id >= 0 && before == 0 ? (count + kGroupRows - 1) / kGroupRows : 0;
    }
    __syncthreads();
    if (id >= 0) {
        int group = before / kGroupRows;
        for (int j = 0; j < first; ++j) {
            group += groups[j];
        }
        const ListPlace to = place_of(c, group);
        write_entry(to, before % kGroupRows, entry);
        if (before % kGroupRows == 0) {
            write_group(c, to, id, min(kGroupRows, count - before));
        }
    }
    if (i == routed) {
        int group = 0;
        for (int j = 0; j < routed; ++j) {
            group += groups[j];
        }
        if (c.down[c.experts].words != nullptr) {
            for (int row = 0; row < c.rows; row += kGroupRows, ++group) {
                const ListPlace to = place_of(c, group);
                const int rows = min(kGroupRows, c.rows - row);
                write_group(c, to, c.experts, rows);
                for (int r = 0; r < rows; ++r) {
                    write_entry(to, r, (row + r) * (c.k + 1) + c.k);
                }
            }
        }
        *c.scratch.groups = group;
    }
}

}  // namespace tenon::exl3::cuda
