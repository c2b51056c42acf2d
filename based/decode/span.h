// The memory of a step's values. Storages are numbered in the order in which a step uses them. Memory that is freed and allocated again is
// another storage, so two spans overlap where they belong to the same value, not where their addresses are equal.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace based::decode {

struct Span {
  int64_t storage = -1;           // −1: no memory
  int64_t begin = 0, end = 0;     // bytes
  const void* address = nullptr;  // the address of `begin`; null where the tensor has no memory
  int64_t row = 0, stride = 0;    // with a stride, the memory is rows of `row` bytes, `stride` bytes apart; else all bytes
  int64_t bytes() const { return end - begin; }
  bool operator==(const Span& other) const { return storage == other.storage && begin == other.begin && end == other.end; }
};
using Spans = std::vector<Span>;

inline bool overlap(const Span& a, const Span& b) {
  if (a.storage < 0 || a.storage != b.storage || a.begin >= b.end || b.begin >= a.end) return false;
  if (a.stride == 0 || a.stride != b.stride) return true;
  const int64_t offset = ((b.begin - a.begin) % a.stride + a.stride) % a.stride;  // from a's rows to b's
  return offset < a.row || offset + b.row > a.stride;
}
inline bool overlap(const Span& a, const Spans& all) {
  return std::any_of(all.begin(), all.end(), [&](const Span& b) { return overlap(a, b); });
}
inline bool overlap(const Spans& some, const Spans& all) {
  return std::any_of(some.begin(), some.end(), [&](const Span& a) { return overlap(a, all); });
}
inline bool contains(const Span& outer, const Span& inner) {
  return outer.storage >= 0 && outer.storage == inner.storage && outer.begin <= inner.begin && inner.end <= outer.end;
}
// Whether they share addresses. Values that exist at different times may.
inline bool share_memory(const Span& a, const Span& b) {
  const auto *x = static_cast<const char*>(a.address), *y = static_cast<const char*>(b.address);
  return x != nullptr && y != nullptr && x < y + b.bytes() && y < x + a.bytes();
}
inline void append(Spans& spans, const Spans& more) { spans.insert(spans.end(), more.begin(), more.end()); }

}  // namespace based::decode
