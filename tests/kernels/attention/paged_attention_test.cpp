// Compares attention over pages with attention over a ring that holds all keys, bit for bit.
#include "based/kernels/attention/paged_attention.h"

#include "based/kernels/attention/causal_attention.h"
#include "tests/kernels/common/buffer.h"

namespace based::kernels {
namespace paged_attention_test {

constexpr int64_t kSlots = 3, kPages = 12, kPageTokens = 4, kSlotPages = 5;

struct Sizes {
  int32_t heads, kv_heads, head_dim;
  DType dtype;
};

// The same sequences in pages and in rings.
struct Caches {
  Sizes sizes;
  Buffer k_pages, v_pages, k_ring, v_ring;
  std::vector<int64_t> page_table, lengths = std::vector<int64_t>(kSlots);  // by slot
  std::vector<int64_t> position;                                            // by row of the call

  explicit Caches(const Sizes& s)
      : sizes(s),
        k_pages(sizes.dtype, kPages * kPageTokens * key_size()),
        v_pages(sizes.dtype, kPages * kPageTokens * key_size()),
        k_ring(sizes.dtype, kSlots * kPageTokens * kSlotPages * key_size()),
        v_ring(sizes.dtype, kSlots * kPageTokens * kSlotPages * key_size()),
        page_table{7, 2, 11, 0, 4, -1, -1, -1, -1, -1, 5, 9, 1, -1, -1} {}

  int64_t key_size() const { return int64_t{sizes.kv_heads} * sizes.head_dim; }

  PagedAttention paged(const std::vector<int64_t>& slots, Buffer& q, Buffer& k, Buffer& v, Buffer& y) {
    PagedAttention p;
    p.q = q.data(), p.k = k.data(), p.v = v.data(), p.y = y.data(), p.k_pages = k_pages.data(), p.v_pages = v_pages.data();
    p.page_table = page_table.data(), p.position = position.data(), p.slot = slots.data();
    p.rows = static_cast<int64_t>(slots.size()), p.pages = kPages, p.page_tokens = kPageTokens, p.slot_pages = kSlotPages;
    p.q_stride = int64_t{sizes.heads} * sizes.head_dim, p.k_stride = p.v_stride = key_size();
    p.heads = sizes.heads, p.kv_heads = sizes.kv_heads, p.head_dim = sizes.head_dim, p.scale = 0.3F, p.dtype = sizes.dtype;
    return p;
  }
  CausalAttentionStep ring(const std::vector<int64_t>& slots, Buffer& q, Buffer& k, Buffer& v, Buffer& y) {
    CausalAttentionStep p;
    p.q = q.data(), p.k = k.data(), p.v = v.data(), p.y = y.data(), p.k_ring = k_ring.data(), p.v_ring = v_ring.data();
    p.position = position.data(), p.slot = slots.data();
    p.rows = static_cast<int64_t>(slots.size()), p.capacity = kPageTokens * kSlotPages;
    p.q_stride = int64_t{sizes.heads} * sizes.head_dim, p.k_stride = p.v_stride = key_size();
    p.heads = sizes.heads, p.kv_heads = sizes.kv_heads, p.head_dim = sizes.head_dim, p.scale = 0.3F, p.dtype = p.ring_dtype = sizes.dtype;
    return p;
  }
};

TEST(PagedAttention, GivesTheBitsOfARingThatHoldsAllKeys) {
  for (const Sizes& sizes :
       {Sizes{4, 2, 64, DType::f32}, Sizes{4, 2, 64, DType::bf16}, Sizes{3, 1, 5, DType::bf16}, Sizes{1, 1, 80, DType::f32}})
    on_every_isa([&] {
      Caches caches(sizes);
      for (unsigned t = 0; t < 20; ++t) {  // slot 2 has three pages and is idle when they are full; slot 1 has no pages
        const std::vector<int64_t> slots = t % 3 == 0 ? std::vector<int64_t>{2, 0} : std::vector<int64_t>{0, 1, 2};
        const auto rows = static_cast<int64_t>(slots.size());
        const auto draw = [&](int64_t heads, unsigned seed) {
          return Buffer(sizes.dtype, random_reals(rows * heads * sizes.head_dim, 3 * t + seed, sizes.dtype));
        };
        Buffer q = draw(sizes.heads, 0), k = draw(sizes.kv_heads, 1), v = draw(sizes.kv_heads, 2);
        Buffer y(sizes.dtype, rows * sizes.heads * sizes.head_dim), expected = y;
        caches.position.clear();
        for (const int64_t slot : slots) caches.position.push_back(caches.lengths[slot]++);
        ASSERT_TRUE(cpu::causal_attention_step(caches.ring(slots, q, k, v, expected)).ok());
        ASSERT_TRUE(cpu::paged_attention_step(caches.paged(slots, q, k, v, y), nullptr).ok());
        const Reals found = y.values(), wanted = expected.values();
        const auto row_size = static_cast<size_t>(sizes.heads * sizes.head_dim);
        for (size_t row = 0; row < slots.size(); ++row) {
          const bool idle = slots[row] == 1 || (slots[row] == 2 && caches.position[row] >= 12);
          for (size_t i = row * row_size; i < (row + 1) * row_size; ++i) EXPECT_EQ(found[i], idle ? 0 : wanted[i]);
        }
      }
      EXPECT_TRUE(caches.k_pages.guards_intact() && caches.v_pages.guards_intact());
    });
}

TEST(PagedAttention, RefusesWhatItCannotCompute) {
  PagedAttention p;
  p.rows = 1;
  EXPECT_STREQ(cpu::paged_attention_step(p, nullptr).what, "paged_attention: heads must be a multiple of kv_heads, both at least 1");
  p.heads = p.kv_heads = 1, p.page_tokens = 3;
  EXPECT_STREQ(cpu::paged_attention_step(p, nullptr).what, "paged_attention: page_tokens must be a power of two");
  Caches caches({1, 1, 8, DType::f32});
  Buffer x(DType::f32, 8), y(DType::f32, 8);
  const std::vector<int64_t> slots{0};
  for (const int64_t page : {kPages, int64_t{-1}}) {  // the page of a key that an earlier step should have written
    caches.position = {5}, caches.page_table[0] = page;
    EXPECT_STREQ(cpu::paged_attention_step(caches.paged(slots, x, x, x, y), nullptr).what,
                 "paged_attention: page_table must name pages of the pool for all keys of a slot");
  }
}

}  // namespace paged_attention_test
}  // namespace based::kernels
