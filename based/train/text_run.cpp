#include "based/train/text_run.h"

#include <cmath>
#include <filesystem>

#include "based/core/files.h"
#include "based/core/log.h"
#include "based/core/random.h"
#include "based/data/bpe.h"
#include "based/data/bpe_trainer.h"
#include "based/generate/text_stream.h"
#include "based/models/weights.h"

namespace based {
namespace {

void check_run(const TextRun& run) {
  const auto require = [](bool right, const char* what) {
    if (!right) throw UsageError(what);
  };
  check_optimizer_options(run.optimizer);
  require(!run.data.train.empty(), "data.train names no text file");
  require(run.data.valid_fraction > 0 && run.data.valid_fraction < 1, "data.valid_fraction must be above 0 and below 1");
  require(run.train.steps >= 1 && run.train.batch >= 1 && run.train.length >= 1,
          "train.steps, train.batch and train.length must be at least 1");
  require(run.train.evaluate_every >= 0 && run.train.evaluate_batches >= 1 && run.train.log_every >= 1,
          "train.evaluate_every must not be negative; train.evaluate_batches and train.log_every must be at least 1");
  require(run.checkpoint.every >= 0, "checkpoint.every must not be negative");
}

std::unique_ptr<Tokenizer> tokenizer_of(const TextDataConfig& data, const std::string& text) {
  if (data.tokenizer != "bpe") return make_tokenizer(data.tokenizer);
  BpeTrainer trainer({data.bpe_vocab_size, 2, {}});
  trainer.add(text);
  return std::make_unique<BpeTokenizer>(trainer.train());
}

struct Split {
  Tensor train, valid;  // int64
};

Split split_tokens(const TextRun& run, const std::string& text, const Tokenizer& tokenizer) {
  Tensor train = torch::tensor(encode_ids(tokenizer, text)), valid;
  if (run.data.valid.empty()) {
    const int64_t held = static_cast<int64_t>(std::ceil(static_cast<double>(train.size(0)) * run.data.valid_fraction));
    valid = train.narrow(0, train.size(0) - held, held);
    train = train.narrow(0, 0, train.size(0) - held);
  } else {
    valid = torch::tensor(encode_ids(tokenizer, read_file(run.data.valid)));
  }
  for (const auto& [tokens, path] : {std::pair{train, run.data.train}, {valid, run.data.valid.empty() ? run.data.train : run.data.valid}})
    if (tokens.size(0) <= run.train.length)
      throw Error(path + ": gives " + std::to_string(tokens.size(0)) +
                  " tokens, too few for train.length = " + std::to_string(run.train.length));
  return {train, valid};
}

// Windows at random places. The draw depends on (seed, stream, index) alone.
Batch windows(const Tensor& tokens, const TextTrainConfig& train, uint64_t stream) {
  Random random(static_cast<uint64_t>(train.seed), stream);
  std::vector<Tensor> ids, labels;
  for (int64_t row = 0; row < train.batch; ++row) {
    const int64_t at = static_cast<int64_t>(random.below(static_cast<uint64_t>(tokens.size(0) - train.length)));
    ids.push_back(tokens.narrow(0, at, train.length));
    labels.push_back(tokens.narrow(0, at + 1, train.length));
  }
  return {torch::cat(ids), torch::cat(labels), Sequences::equal(train.batch, train.length)};
}

// Even streams train, odd ones evaluate: the same held-out windows at every evaluation.
Json evaluate(LanguageModel& model, const TextRun& run, const Tensor& valid) {
  const torch::NoGradGuard no_grad;
  double sum = 0;
  for (int64_t i = 0; i < run.train.evaluate_batches; ++i) {
    const Batch batch = windows(valid, run.train, 2 * static_cast<uint64_t>(i) + 1);
    sum += model.loss(batch.ids, batch.labels, batch.rows).item<double>();
  }
  const double loss = sum / static_cast<double>(run.train.evaluate_batches);
  return {{"loss", loss}, {"perplexity", std::exp(loss)}};
}

}  // namespace

TextRunResult run_text_training(const TextRun& run, const std::string& out) {
  check_run(run);
  const std::string text = read_file(run.data.train);
  const auto tokenizer = tokenizer_of(run.data, text);
  const Split split = split_tokens(run, text, *tokenizer);
  Config model_keys = run.model.is_null() ? Config(Config::Table{}) : run.model;
  model_keys.set("vocab_size", Config(tokenizer->vocab_size()));
  const ModelConfig config = read_model_config(model_keys);

  std::filesystem::create_directories(out);
  tokenizer->save(out);
  write_file_atomic((std::filesystem::path(out) / "run.json").string(), write_config(run).to_json() + "\n");
  torch::manual_seed(static_cast<uint64_t>(run.train.seed));
  TextRunResult result;
  result.model = std::make_shared<LanguageModel>(config);
  result.parameters = result.model->parameter_count();
  result.train_tokens = split.train.size(0);
  result.valid_tokens = split.valid.size(0);
  log_info("training " + std::to_string(result.parameters) + " parameters on " + std::to_string(result.train_tokens) + " tokens of " +
           run.data.train + ", " + std::to_string(result.valid_tokens) + " held out");

  AdamW optimizer(*result.model, run.optimizer);
  LoopOptions options;
  options.steps = run.train.steps;
  options.evaluate_every = run.train.evaluate_every;
  options.checkpoint_every = run.checkpoint.every;
  options.log_every = run.train.log_every;
  options.metrics_path = (std::filesystem::path(out) / "metrics.jsonl").string();
  std::filesystem::remove(options.metrics_path);
  LoopHooks hooks;
  hooks.batch = [&](int64_t step) { return windows(split.train, run.train, 2 * static_cast<uint64_t>(step)); };
  hooks.evaluate = [&](int64_t) { return evaluate(*result.model, run, split.valid); };
  hooks.checkpoint = [&](int64_t) { save_model(*result.model, out); };
  result.loop = train_loop(*result.model, optimizer, run.optimizer, options, hooks);
  return result;
}

}  // namespace based
