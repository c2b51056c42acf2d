#include "theory/routing.h"

#include <algorithm>
#include <numeric>

#include "theory/integers.h"
#include "theory/primitives.h"

namespace based::theory {
namespace {

using Rows = std::vector<int64_t>;

// The input row that each row currently holds (-1: none), and the stages so far.
class Router {
 public:
  explicit Router(size_t rows) : held_(rows) { std::iota(held_.begin(), held_.end(), 0); }

  const Rows& held() const { return held_; }
  std::vector<Layer> take() { return std::move(layers_); }

  // Row i becomes row from[i], which is i or `distance` rows away; -1 empties it. A stage that moves nothing adds no layer.
  void stage(int64_t distance, const Rows& from) {
    bool moves = false;
    Rows next(held_.size(), -1);
    std::vector<Patch> masks;
    for (size_t i = 0; i < held_.size(); ++i) {
      if (from[i] < 0 || held_[static_cast<size_t>(from[i])] < 0) continue;
      next[i] = held_[static_cast<size_t>(from[i])];
      const auto row = static_cast<int64_t>(i);
      const int64_t column = from[i] == row ? 0 : from[i] < row ? 1 : 2;
      moves = moves || column != 0;
      masks.push_back({row, 1, column, 1});
    }
    held_ = next;
    if (!moves) return;
    layers_.push_back({"rows that stay, and rows " + std::to_string(distance) + " away",
                       {},
                       masks,
                       {},
                       {{0, 1, 1, 0, 1}, {distance, 1, 1, 1, 1}, {-distance, 1, 1, 2, 1}}});
    layers_.push_back(join_routed());
  }
  // For each row that is not empty, `move` returns by how many rows it moves down: 0, `distance` or -`distance`.
  template <class Move>
  void move_rows(int64_t distance, const Move& move) {
    Rows from(held_.size(), -1);
    for (size_t i = 0; i < held_.size(); ++i)
      if (held_[i] >= 0) from[static_cast<size_t>(static_cast<int64_t>(i) + move(held_[i]))] = static_cast<int64_t>(i);
    stage(distance, from);
  }
  void forget(const std::vector<bool>& used) {
    for (int64_t& row : held_)
      if (row >= 0 && !used[static_cast<size_t>(row)]) row = -1;
  }

 private:
  Rows held_;
  std::vector<Layer> layers_;
};

// One side of a Beneš network: the half that each output and its input are routed through, such that the two of a pair use different
// halves.
std::vector<bool> halves(const Rows& source) {
  const size_t half = source.size() / 2;
  Rows output(source.size());
  for (size_t o = 0; o < source.size(); ++o) output[static_cast<size_t>(source[o])] = static_cast<int64_t>(o);
  std::vector<bool> lower(source.size()), known(source.size());
  for (size_t start = 0; start < source.size(); ++start) {
    for (size_t o = start; !known[o];) {
      known[o] = true;
      lower[o] = false;
      const size_t partner_input = static_cast<size_t>(source[o]) ^ half;
      const auto other = static_cast<size_t>(output[partner_input]);
      known[other] = true;
      lower[other] = true;
      o = other ^ half;
    }
  }
  return lower;
}

// The stages of a Beneš network for several consecutive blocks of rows. In each block, row i becomes row source[i] of the block.
void permute(Router& router, const std::vector<Rows>& blocks) {
  const size_t size = blocks[0].size(), half = size / 2;
  if (size == 1) return;
  Rows first, last;
  std::vector<Rows> inner;
  for (size_t block = 0; block < blocks.size(); ++block) {
    const Rows& source = blocks[block];
    const auto base = static_cast<int64_t>(block * size);
    const std::vector<bool> lower = halves(source);
    Rows in(size), out(size), upper_source(half), lower_source(half);
    for (size_t o = 0; o < size; ++o) {
      const auto from = static_cast<size_t>(source[o]);
      const size_t side = lower[o] ? half : 0;
      in[from % half + side] = base + static_cast<int64_t>(from);
      out[o] = base + static_cast<int64_t>(o % half + side);
      (lower[o] ? lower_source : upper_source)[o % half] = static_cast<int64_t>(from % half);
    }
    first.insert(first.end(), in.begin(), in.end());
    last.insert(last.end(), out.begin(), out.end());
    inner.push_back(upper_source);
    inner.push_back(lower_source);
  }
  router.stage(static_cast<int64_t>(half), first);
  if (half > 1) {
    permute(router, inner);
    router.stage(static_cast<int64_t>(half), last);
  }
}

// Moves the rows in use to the top, in order, and from there to the first row of each one's copies. Rows do not collide if moves up process
// the bits of their distances from the lowest to the highest, and moves down from the highest to the lowest.
void spread(Router& router, const Rows& sources, const Rows& begins) {
  const auto rows = static_cast<int64_t>(router.held().size());
  Rows rank(static_cast<size_t>(rows));
  for (size_t k = 0; k < sources.size(); ++k) rank[static_cast<size_t>(sources[k])] = static_cast<int64_t>(k);
  for (int64_t distance = 1; distance < rows; distance *= 2)
    router.move_rows(distance, [&](int64_t held) { return ((held - rank[static_cast<size_t>(held)]) & distance) != 0 ? -distance : 0; });
  for (int64_t distance = rows / 2; distance >= 1; distance /= 2)
    router.move_rows(distance, [&](int64_t held) {
      const int64_t k = rank[static_cast<size_t>(held)];
      return ((begins[static_cast<size_t>(k)] - k) & distance) != 0 ? distance : 0;
    });
}

}  // namespace

std::vector<Layer> route_rows(const std::vector<int64_t>& source) {
  const size_t rows = source.size();
  BASED_ASSERT(rows >= 1 && (rows & (rows - 1)) == 0);
  // Destinations sorted by their sources: the copies of a source are adjacent, and empty rows come last.
  Rows order(rows);
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](int64_t row) {
    return source[static_cast<size_t>(row)] < 0 ? static_cast<int64_t>(rows) : source[static_cast<size_t>(row)];
  };
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return key(a) < key(b); });

  Router router(rows);
  std::vector<bool> used(rows);
  Rows sources, begins, wanted(rows, -1);
  for (size_t k = 0; k < rows; ++k) {
    const int64_t from = source[static_cast<size_t>(order[k])];
    if (from < 0) break;
    wanted[k] = from;
    if (sources.empty() || sources.back() != from) sources.push_back(from), begins.push_back(static_cast<int64_t>(k));
    used[static_cast<size_t>(from)] = true;
  }
  router.forget(used);
  spread(router, sources, begins);
  for (size_t distance = 1; distance < rows; distance *= 2) {
    Rows from(rows, -1);
    for (size_t i = 0; i < rows; ++i) {
      from[i] = static_cast<int64_t>(i);
      if (router.held()[i] < 0 && i >= distance && wanted[i] >= 0 && router.held()[i - distance] == wanted[i])
        from[i] = static_cast<int64_t>(i - distance);
    }
    router.stage(static_cast<int64_t>(distance), from);
  }
  Rows place(rows);
  for (size_t k = 0; k < rows; ++k) place[static_cast<size_t>(order[k])] = static_cast<int64_t>(k);
  permute(router, {place});
  BASED_ASSERT(router.held() == source);
  std::vector<Layer> layers = router.take();
  // Unused rows are emptied by the first stage, or here if no stage moves anything.
  std::vector<Patch> kept;
  for (size_t i = 0; i < rows; ++i)
    if (source[i] >= 0) kept.push_back({static_cast<int64_t>(i), 1, 0, kAll});
  if (layers.empty() && kept.size() < rows) layers.push_back(keep(kept));
  return layers;
}

Layer to_routed() { return repeat_columns(1, kRouted); }

Layer join_routed() {
  std::vector<WeightEntry> all;
  for (int64_t j = 0; j < kRouted; ++j)
    for (int64_t k = 0; k < kRouted; ++k) all.push_back({j, k});
  return map_columns("join the three columns", all);
}

}  // namespace based::theory
