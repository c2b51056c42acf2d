#include "theory/linear_attention.h"

#include "theory/integers.h"

namespace based::theory {
namespace {

// The columns: queries q, keys k, the pairwise products of each, and one column (m, j) for each feature m and column j of V.
struct AttentionColumns {
  int64_t feature_dim, model_dim;
  int64_t query(int64_t k) const { return k; }
  int64_t key(int64_t k) const { return feature_dim + k; }
  int64_t query_pair(int64_t pair) const { return 2 * feature_dim + pair; }
  int64_t key_pair(int64_t pair) const { return 2 * feature_dim + feature_dim * feature_dim + pair; }
  int64_t carried() const { return 2 * (feature_dim + feature_dim * feature_dim); }
  int64_t term(int64_t feature, int64_t j) const { return carried() + feature * model_dim + j; }
  int64_t features() const { return 1 + feature_dim + feature_dim * feature_dim; }
  int64_t all() const { return term(features(), 0); }
  int64_t terms() const { return features() * model_dim; }
};

// Column `to` of the layer's output becomes column `from` of the projection.
void add_projection(const LinearProjection& projection, int64_t from, int64_t to, Layer& layer) {
  for (int64_t i = 0; i < projection.weight.size.rows; ++i)
    if (const int64_t weight = projection.weight.at(i, from)) layer.weight.push_back({i, to, weight});
  for (int64_t i = 0; i < projection.bias.size.rows; ++i)
    if (const int64_t bias = projection.bias.at(i, from)) layer.gate_bias.push_back({i, 1, to, 1, bias});
}

Layer project(const LinearAttention& attention, const AttentionColumns& at) {
  Layer layer{"queries, keys and values, each as often as it is needed", {}, {}, {{0, kAll, 0, kAll}}, {}};
  for (int64_t k = 0; k < at.feature_dim; ++k) {
    add_projection(attention.query, k, at.query(k), layer);
    add_projection(attention.key, k, at.key(k), layer);
  }
  for (int64_t pair = 0; pair < at.feature_dim * at.feature_dim; ++pair) {
    add_projection(attention.query, pair / at.feature_dim, at.query_pair(pair), layer);
    add_projection(attention.key, pair / at.feature_dim, at.key_pair(pair), layer);
  }
  for (int64_t feature = 0; feature < at.features(); ++feature)
    for (int64_t j = 0; j < at.model_dim; ++j) add_projection(attention.value, j, at.term(feature, j), layer);
  return layer;
}

Layer square(const AttentionColumns& at) {
  Layer layer{"products of pairs of features", {}, {}, {{0, kAll, 0, 2 * at.feature_dim}, {0, kAll, at.carried(), at.terms()}}, {}};
  for (int64_t k = 0; k < 2 * at.feature_dim; ++k) layer.weight.push_back({k, k});
  for (int64_t pair = 0; pair < at.feature_dim * at.feature_dim; ++pair) {
    layer.weight.push_back({at.query(pair % at.feature_dim), at.query_pair(pair)});
    layer.weight.push_back({at.key(pair % at.feature_dim), at.key_pair(pair)});
  }
  for (int64_t k = 0; k < at.terms(); ++k) layer.weight.push_back({at.carried() + k, at.carried() + k});
  layer.filter.push_back({0, 1, 1, 2 * at.feature_dim, at.carried() - 2 * at.feature_dim});
  return layer;
}

// Column (m, j) is multiplied, from the left, by feature m of queries or keys.
void add_features(const AttentionColumns& at, bool for_queries, Layer& layer) {
  for (int64_t j = 0; j < at.model_dim; ++j) {
    for (int64_t k = 0; k < at.feature_dim; ++k) layer.weight.push_back({for_queries ? at.query(k) : at.key(k), at.term(1 + k, j)});
    for (int64_t pair = 0; pair < at.feature_dim * at.feature_dim; ++pair)
      layer.weight.push_back({for_queries ? at.query_pair(pair) : at.key_pair(pair), at.term(1 + at.feature_dim + pair, j)});
  }
  layer.gate_bias.push_back({0, kAll, at.carried(), at.model_dim});
}

}  // namespace

Program linear_attention_program(const LinearAttention& attention) {
  const AttentionColumns at{attention.feature_dim, attention.size.columns};
  Program program{attention.size, {attention.size.rows, at.all()}, {project(attention, at), square(at)}};

  Layer values{"features of each key times its values", {}, {}, {{0, kAll, 0, at.carried()}}, {{0, 1, 1, at.carried(), at.terms()}}};
  for (int64_t k = 0; k < at.carried(); ++k) values.weight.push_back({k, k});
  add_features(at, false, values);
  program.layers.push_back(values);

  const int64_t up = attention.causal ? 0 : attention.size.rows - 1;
  Layer queries{
      "features of each query times the sum over keys", {}, {}, {}, {{-up, attention.size.rows + up, 1, at.carried(), at.terms()}}};
  add_features(at, true, queries);
  program.layers.push_back(queries);

  Layer sum{"the sum over features", {}, {}, {{0, kAll, 0, at.model_dim}}, {}};
  for (int64_t feature = 0; feature < at.features(); ++feature)
    for (int64_t j = 0; j < at.model_dim; ++j) sum.weight.push_back({at.term(feature, j), j});
  program.layers.push_back(sum);
  return program;
}

IntMatrix linear_attention(const LinearAttention& attention, const IntMatrix& u) {
  const auto project_row = [&](const LinearProjection& by, int64_t i) {
    std::vector<int64_t> row;
    for (int64_t j = 0; j < by.weight.size.columns; ++j) {
      int64_t sum = by.bias.at(i, j);
      for (int64_t k = 0; k < u.size.columns; ++k) sum = Integers::sum(sum, Integers::product(u.at(i, k), by.weight.at(k, j)));
      row.push_back(sum);
    }
    return row;
  };
  IntMatrix z(attention.size);
  for (int64_t i = 0; i < attention.size.rows; ++i) {
    const auto query = project_row(attention.query, i);
    for (int64_t n = 0; n < (attention.causal ? i + 1 : attention.size.rows); ++n) {
      const auto key = project_row(attention.key, n), value = project_row(attention.value, n);
      int64_t product = 0;
      for (size_t k = 0; k < query.size(); ++k) product = Integers::sum(product, Integers::product(query[k], key[k]));
      const int64_t weight = Integers::sum(1, Integers::sum(product, Integers::product(product, product)));  // Q̄ᵢ · K̄ₙ
      for (int64_t j = 0; j < attention.size.columns; ++j)
        z.at(i, j) = Integers::sum(z.at(i, j), Integers::product(weight, value[static_cast<size_t>(j)]));
    }
  }
  return z;
}

}  // namespace based::theory
