#include "based/theory/block_recall.h"

#include "based/theory/integers.h"

namespace based::theory {
namespace {

// Columns 0 … d-1 keep the input; d … 2d-1 are products of one variable of the query and of a key; from 2d on, one column a block, are
// those of "none of the block is 1".
struct Columns {
  int64_t width, blocks, block_width;
  bool almost;
  int64_t product(int64_t k) const { return width + k; }
  int64_t none(int64_t block) const { return 2 * width + block; }
  int64_t all() const { return 2 * width + (almost ? blocks : 0); }
  int64_t block_of(int64_t k) const { return k / block_width; }
};

// Layers that leave the input's columns as they are.
Layer keeping_input(const char* what, int64_t width) {
  Layer layer{what, {}, {}, {{0, kAll, 0, width}}, {}};
  for (int64_t k = 0; k < width; ++k) layer.weight.push_back({k, k});
  return layer;
}

Layer copy_query(const Columns& at, int64_t query) {
  Layer layer = keeping_input("the query, and its sum over each block, into columns of their own", at.width);
  for (int64_t k = 0; k < at.width; ++k) {
    layer.weight.push_back({k, at.product(k)});
    if (at.almost) layer.weight.push_back({k, at.none(at.block_of(k))});
  }
  layer.filter_bias.push_back({query, 1, at.width, at.all() - at.width});
  return layer;
}

Layer multiply_by_query(const Columns& at, int64_t query) {
  Layer layer = keeping_input("every row times the query, which the filter brings up", at.width);
  layer.filter.push_back({-query, query + 1, 1, at.width, at.all() - at.width});
  for (int64_t k = 0; k < at.width; ++k) {
    layer.weight.push_back({k, at.product(k)});
    if (at.almost) layer.weight.push_back({k, at.none(at.block_of(k))});
  }
  if (at.almost) {  // (Σk − 1)(Σq − 1), which is 1 where neither block has a 1
    layer.gate_bias.push_back({0, kAll, at.none(0), at.blocks, -1});
    layer.filter_bias.push_back({0, kAll, at.none(0), at.blocks, -1});
  }
  return layer;
}

Layer sum_blocks(const Columns& at, int64_t keys) {
  Layer layer = keeping_input("the sum over each block: 1 where the block of key and query agree", at.width);
  for (int64_t k = 0; k < at.width; ++k) layer.weight.push_back({at.product(k), at.product(at.block_of(k))});
  for (int64_t block = 0; at.almost && block < at.blocks; ++block) layer.weight.push_back({at.none(block), at.product(block)});
  for (int64_t key = 0; key < keys; ++key) layer.filter_bias.push_back({2 * key, 1, at.width, at.blocks});
  return layer;
}

Layer multiply_halves(const Columns& at, int64_t factors) {
  Layer layer = keeping_input("the product of two halves of the blocks", at.width);
  const int64_t half = (factors + 1) / 2;
  for (int64_t block = 0; block + half < factors; ++block) layer.weight.push_back({at.product(block + half), at.product(block)});
  if (factors % 2 == 1) layer.gate_bias.push_back({0, kAll, at.product(half - 1), 1});
  layer.filter.push_back({0, 1, 1, at.width, half});
  return layer;
}

}  // namespace

Program block_recall(const PHot& encoding, int64_t keys) {
  BASED_ASSERT(keys >= 1);
  const Columns at{encoding.width(), encoding.blocks, encoding.block_width(), encoding.almost};
  const int64_t query = 2 * keys;
  Program program{{query + 1, at.width}, {query + 1, at.all()}, {}};
  program.layers = {copy_query(at, query), multiply_by_query(at, query), sum_blocks(at, keys)};
  for (int64_t factors = at.blocks; factors > 1; factors = (factors + 1) / 2) program.layers.push_back(multiply_halves(at, factors));

  Layer values{"1 where a key is the query, times the row below: its value", {}, {}, {}, {{-1, 1, 1, 0, at.width}}};
  for (int64_t k = 0; k < at.width; ++k) values.weight.push_back({at.product(0), k});
  program.layers.push_back(values);
  program.layers.push_back({"the sum of all rows into the last", {}, {{query, 1, 0, at.width}}, {}, {{0, query + 1, 1, 0, at.width}}});
  return program;
}

IntMatrix encoded(const PHot& encoding, const std::vector<int64_t>& tokens) {
  IntMatrix rows({static_cast<int64_t>(tokens.size()), encoding.width()});
  for (int64_t i = 0; i < rows.size.rows; ++i) {
    if (tokens[static_cast<size_t>(i)] < 0) continue;
    const auto row = encoding.encode(tokens[static_cast<size_t>(i)]);
    std::copy(row.begin(), row.end(), rows.row(i));
  }
  return rows;
}

}  // namespace based::theory
