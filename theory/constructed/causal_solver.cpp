#include "theory/constructed/causal_solver.h"

#include <bit>

#include "based/core/error.h"

namespace based {
namespace {

// The gain of the third layer: the value's logit must exceed those of keys, whose embeddings match the query's own in the residual stream.
constexpr double kGain = 64;

Config layer(std::initializer_list<std::pair<const char*, Config::Value>> pairs) {
  Config::Table table{{"type", Config(std::string("base_conv"))}};
  for (const auto& [key, value] : pairs) table.emplace_back(key, Config(value));
  return Config(table);
}

}  // namespace

int64_t CausalSolver::code() const { return 2 * std::max<int64_t>(1, std::bit_width(static_cast<uint64_t>(values() - 1))); }

void CausalSolver::check() const {
  if (vocab_size < 4 || vocab_size > 1024 || vocab_size % 2 != 0)
    throw UsageError("the causal solver takes an even vocabulary of 4 to 1024 tokens, got " + std::to_string(vocab_size) +
                     "; its width is keys times code");
  if (length < 2 || length > (1 << 20)) throw UsageError("the causal solver takes a length of 2 to 1048576, got " + std::to_string(length));
}

ModelConfig CausalSolver::config() const {
  check();
  ModelConfig config;
  config.d_model = width();
  config.vocab_size = vocab_size;
  config.pad_vocab_multiple = 1;
  config.mlp = "none";
  config.norm_eps = 1e-12;  // the filler is a row of zeros
  config.mixers = {{"product", layer({{"kernel_size", int64_t{2}}})},
                   {"sum", layer({{"kernel_size", int64_t{-1}}, {"l_max", length}})},
                   {"collect", layer({{"kernel_size", int64_t{1}}})}};
  config.layers = {"product", "sum", "collect"};
  return config;
}

std::shared_ptr<LanguageModel> CausalSolver::build() const {
  const ModelConfig config = this->config();
  const SkipInitialisation none;
  const torch::NoGradGuard no_grad;
  auto model = std::make_shared<LanguageModel>(config);
  model->eval();
  auto parameters = model->named_parameters();
  for (auto& parameter : parameters) parameter.value().zero_();
  for (auto& parameter : parameters)
    if (parameter.key().find("norm") != std::string::npos) parameter.value().fill_(1);
  const int64_t k = keys(), c = code(), products = k + c;
  const auto product = [&](int64_t key, int64_t bit) { return products + key * c + bit; };
  const auto weight = [&](int64_t at, const char* name) { return parameters["layers." + std::to_string(at) + ".mixer." + name]; };

  // All embeddings have the same norm: a key has its own 1 and the c ones of its products; a value has c/2 ones, which are scaled.
  Tensor embedding = parameters["embedding"];
  for (int64_t key = 0; key < k; ++key) {
    Tensor row = embedding[key + 1];
    row[key] = 1;
    row.narrow(0, product(key, 0), c).fill_(1);
  }
  const double size = std::sqrt((1 + static_cast<double>(c)) / (static_cast<double>(c) / 2));
  for (int64_t value = 0; value < values(); ++value)
    for (int64_t bit = 0; bit < c / 2; ++bit) embedding[vocab_size / 2 + value][k + 2 * bit + (value >> bit & 1)] = size;

  weight(0, "conv.weight").narrow(0, products, k * c).select(1, 0).fill_(1);  // the previous token
  weight(1, "filter.taps").narrow(0, products, k * c).fill_(1);
  weight(2, "conv.bias").narrow(0, k, c).fill_(1);  // a factor of one
  for (int64_t key = 0; key < k; ++key)
    for (int64_t bit = 0; bit < c; ++bit) {
      weight(0, "projection.weight")[product(key, bit)][k + bit] = 1;
      weight(1, "projection.weight")[product(key, bit)][key] = 1;
      weight(2, "projection.weight")[k + bit][product(key, bit)] = kGain;
    }
  return model;
}

}  // namespace based
