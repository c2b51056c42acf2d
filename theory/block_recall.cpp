#include "theory/block_recall.h"

#include "theory/primitives.h"

namespace based::theory {
namespace {

// Columns 0 … d-1 hold the input. Columns d … 2d-1 hold the products of a query's and a key's variables. The columns from 2d on, one per
// block, hold the products for "no variable of the block is 1".
struct Columns {
  int64_t width, blocks, block_width;
  bool almost;
  int64_t product(int64_t k) const { return width + k; }
  int64_t none(int64_t block) const { return 2 * width + block; }
  int64_t all() const { return 2 * width + (almost ? blocks : 0); }
  int64_t block_of(int64_t k) const { return k / block_width; }
};

// Vertically stacked copies of an input of `rows` rows, one for each query. A query has its row in its copy and the number of keys that it
// may match, which are above it. A value is in the row below its key.
struct Query {
  int64_t row;
  std::vector<int64_t> keys;
};
struct Copies {
  int64_t rows;
  std::vector<Query> queries;
  int64_t row_of(size_t query) const { return static_cast<int64_t>(query) * rows + queries[query].row; }
};

// A layer that does not change the input's columns.
Layer keeping_input(const char* what, int64_t width) {
  Layer layer{what, {}, {}, {{0, kAll, 0, width}}, {}};
  for (int64_t k = 0; k < width; ++k) layer.weight.push_back({k, k});
  return layer;
}

Layer copy_queries(const Columns& at, const Copies& copies) {
  Layer layer = keeping_input("the query, and its sum over each block, into columns of their own", at.width);
  for (int64_t k = 0; k < at.width; ++k) {
    layer.weight.push_back({k, at.product(k)});
    if (at.almost) layer.weight.push_back({k, at.none(at.block_of(k))});
  }
  for (size_t query = 0; query < copies.queries.size(); ++query)
    layer.filter_bias.push_back({copies.row_of(query), 1, at.width, at.all() - at.width});
  return layer;
}

// The filter's window is as long as a copy, so that no key row receives the query of the next copy.
Layer multiply_by_query(const Columns& at, const Copies& copies) {
  Layer layer = keeping_input("every row times the query, which the filter brings up", at.width);
  layer.filter.push_back({1 - copies.rows, copies.rows, 1, at.width, at.all() - at.width});
  for (int64_t k = 0; k < at.width; ++k) {
    layer.weight.push_back({k, at.product(k)});
    if (at.almost) layer.weight.push_back({k, at.none(at.block_of(k))});
  }
  if (at.almost) {  // (Σk − 1)(Σq − 1), which is 1 if neither block has a 1
    layer.gate_bias.push_back({0, kAll, at.none(0), at.blocks, -1});
    layer.filter_bias.push_back({0, kAll, at.none(0), at.blocks, -1});
  }
  return layer;
}

Layer sum_blocks(const Columns& at, const Copies& copies) {
  Layer layer = keeping_input("the sum over each block: 1 where the block of key and query agree", at.width);
  for (int64_t k = 0; k < at.width; ++k) layer.weight.push_back({at.product(k), at.product(at.block_of(k))});
  for (int64_t block = 0; at.almost && block < at.blocks; ++block) layer.weight.push_back({at.none(block), at.product(block)});
  for (size_t query = 0; query < copies.queries.size(); ++query)
    for (const int64_t key : copies.queries[query].keys)
      layer.filter_bias.push_back({static_cast<int64_t>(query) * copies.rows + key, 1, at.width, at.blocks});
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

// Each query's row becomes the sum of the rows above it in its copy.
Layer sum_copies(const Columns& at, const Copies& copies) {
  Layer layer{"the sum of a copy's rows, in its query's row", {}, {}, {}, {{0, copies.rows, 1, 0, at.width}}};
  for (size_t query = 0; query < copies.queries.size(); ++query) layer.gate_bias.push_back({copies.row_of(query), 1, 0, at.width});
  return layer;
}

// Moves each query's row from its own copy to the first copy. In all other copies this row is zero.
Layer merge_copies(const Columns& at, const Copies& copies) {
  Layer layer{"all queries' rows into the first copy", {}, {}, {}, {}};
  for (size_t query = 0; query < copies.queries.size(); ++query) {
    layer.filter.push_back({-static_cast<int64_t>(query) * copies.rows, 1, 1, 0, at.width});
    layer.gate_bias.push_back({copies.queries[query].row, 1, 0, at.width});
  }
  return layer;
}

Program program_of(const PHot& encoding, const Copies& copies) {
  const Columns at{encoding.width(), encoding.blocks, encoding.block_width(), encoding.almost};
  const auto times = static_cast<int64_t>(copies.queries.size());
  Program program{{copies.rows, at.width}, {times * copies.rows, at.all()}, {}};
  if (times > 1) program.layers.push_back(repeat_matrix(copies.rows, times));
  program.append({copy_queries(at, copies), multiply_by_query(at, copies), sum_blocks(at, copies)});
  for (int64_t factors = at.blocks; factors > 1; factors = (factors + 1) / 2) program.layers.push_back(multiply_halves(at, factors));

  Layer values{"1 where a key is the query, times the row below: its value", {}, {}, {}, {{-1, 1, 1, 0, at.width}}};
  for (int64_t k = 0; k < at.width; ++k) values.weight.push_back({at.product(0), k});
  program.append({values, sum_copies(at, copies)});
  if (times > 1) program.layers.push_back(merge_copies(at, copies));
  return program;
}

}  // namespace

Program block_recall(const PHot& encoding, int64_t keys) {
  BASED_ASSERT(keys >= 1);
  Copies copies{2 * keys + 1, {{2 * keys, {}}}};
  for (int64_t key = 0; key < keys; ++key) copies.queries[0].keys.push_back(2 * key);
  return program_of(encoding, copies);
}

Program block_mqar(const PHot& encoding, int64_t tuples) {
  BASED_ASSERT(tuples >= 1);
  Copies copies{3 * tuples, {}};
  std::vector<int64_t> keys;
  for (int64_t i = 0; i < tuples; ++i) {
    copies.queries.push_back({3 * i + 2, keys});
    keys.push_back(3 * i);
  }
  return program_of(encoding, copies);
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
