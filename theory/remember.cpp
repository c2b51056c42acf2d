#include "theory/remember.h"

#include <algorithm>

namespace based::theory {
namespace {

// The places while layers are applied: the region starts at row `work`, and a copy of all other rows at row `copy`.
struct Places {
  int64_t work, copy;
};

Places places(const Region& region, const Layer& layer) {
  // The layer's output for other rows must not reach `work`, nor overlap anything when the rows are moved back up.
  const int64_t work = region.occupied + std::max(layer.reach_down(), region.first);
  return {work, work + std::max(region.rows + layer.reach_down(), region.occupied - region.first)};
}

}  // namespace

int64_t rows_to_remember(const Region& region, const Layer& layer) { return places(region, layer).copy + region.occupied; }

int64_t rows_to_remember(const Region& region, const std::vector<Layer>& layers) {
  int64_t rows = region.occupied;
  for (const Layer& layer : layers) rows = std::max(rows, rows_to_remember(region, layer));
  return rows;
}

std::vector<Layer> remember(const Region& region, const Layer& layer) {
  const int64_t occupied = region.occupied, first = region.first, rows = region.rows;
  const Places at = places(region, layer);
  const int64_t work = at.work, copy = at.copy;
  const int64_t end = first + rows;  // the first row after the region
  const auto others = [&](int64_t at_row) { return std::vector<Patch>{{at_row, first, 0, kAll}, {at_row + end, occupied - end, 0, kAll}}; };
  const auto with = [](std::vector<Patch> patches, const Patch& more) {
    patches.push_back(more);
    return patches;
  };
  const auto moved = [&](const std::vector<Patch>& patches) {
    std::vector<Patch> result;
    for (const Patch& patch : patches) {
      if (patch.row >= rows) continue;
      result.push_back({patch.row + work, std::min(patch.rows, rows - patch.row), patch.column, patch.columns, patch.value});
    }
    return result;
  };

  const Layer apart{"move the rows apart", {}, with(others(0), {work, rows, 0, kAll}), {}, {{0}, {work - first}}};
  Layer applied{layer.what, layer.weight, moved(layer.gate_bias), moved(layer.filter_bias), layer.filter};
  for (const Patch& patch : others(copy)) applied.gate_bias.push_back(patch);
  applied.filter.push_back({copy});
  const Layer back{"bring the rows back", {}, {{0, occupied, 0, kAll}}, {}, {{first - work}, {-copy}}};
  return {apart, applied, back};
}

std::vector<Layer> remember(const Region& region, const std::vector<Layer>& layers) {
  std::vector<Layer> all;
  for (const Layer& layer : layers)
    for (Layer& part : remember(region, layer)) all.push_back(std::move(part));
  return all;
}

}  // namespace based::theory
