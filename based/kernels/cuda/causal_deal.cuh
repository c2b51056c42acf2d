// How persistent blocks of the Hopper kernels for softmax attention share out parts of rows: by tickets, so that a block that has ended one
// part begins the next, and parts begin in a fixed order.
#pragma once
#include "based/kernels/cuda/causal_sm90.cuh"

namespace based::kernels::cuda::detail::causal {

// Parts are numbered as find_part() numbers them; the last ones are dealt first, each for all heads that are taken together.
struct Deck {
  int* ticket;  // in device memory, 0 at first
  int numbers;  // of parts of a head
  int heads;    // that parts are dealt for
  int together;
};

#if BASED_HAS_WGMMA
// Where a warp looks for the next part's row: not after the last one's.
struct LastPlace {
  int row = -1, heads = -1;
};

// A warp: the part of kLength tokens numbered `number` as find_part() numbers them; false: there is none. Looks for its row from `last_row`
// down, and leaves that there.
template <int kLength, bool kOfKeys>
__device__ __forceinline__ bool find(const CausalAttention& p, int number, int& last_row, Place& place) {
  const int64_t* start = kOfKeys ? p.k_start : p.q_start;
  for (int top = last_row; top >= 0; top -= 32) {
    const int row = top - static_cast<int>(threadIdx.x) % 32;
    const int64_t from = row >= 0 ? start[row] : 0, to = row >= 0 ? start[row + 1] : 0;
    const int number_of_first = static_cast<int>(from / kLength) + row;
    const bool here = row >= 0 && number_of_first <= number && (row + 1 == p.rows || to / kLength + row + 1 > number);
    if (__ballot_sync(~0U, here) == 0) continue;
    if (here) {
      place.q_begin = p.q_start[row], place.k_begin = p.k_start[row];
      place.queries = static_cast<int>(p.q_start[row + 1] - place.q_begin),
      place.keys = static_cast<int>(p.k_start[row + 1] - place.k_begin);
      place.row = row, place.part = number - number_of_first, place.share = p.heads / p.kv_heads;
    }
    __syncwarp();
    last_row = warp_uniform(place.row);
    return warp_uniform(place.part * kLength < (kOfKeys ? place.keys : place.queries)) != 0;
  }
  return false;
}

// A warp: the next place for this block, in `place`, which is in shared memory; false: there is none.
template <int kLength, bool kOfKeys>
__device__ __forceinline__ bool take_place(const CausalAttention& p, const Deck& deck, LastPlace& last, Place& place) {
  while (true) {
    const int ticket = warp_uniform(threadIdx.x % 32 == 0 ? atomicAdd(deck.ticket, 1) : 0);
    if (ticket >= deck.numbers * deck.heads) return false;
    const int heads = ticket / (deck.numbers * deck.together), rest = ticket - heads * deck.numbers * deck.together;
    const int width = min(deck.together, deck.heads - heads * deck.together), from_end = rest / width;
    if (heads != last.heads) last.heads = heads, last.row = static_cast<int>(p.rows) - 1;
    if (!find<kLength, kOfKeys>(p, deck.numbers - 1 - from_end, last.row, place)) continue;
    if (threadIdx.x % 32 == 0) place.head = heads * deck.together + rest - from_end * width;
    return true;
  }
}
#endif

}  // namespace based::kernels::cuda::detail::causal
