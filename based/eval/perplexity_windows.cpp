#include <algorithm>

#include "based/eval/perplexity.h"
#include "based/models/limits.h"
#include "based/train/text_data.h"

namespace based {
namespace {

constexpr int64_t kCpuBatchTokens = 4096, kGpuBatchTokens = 32768;

}  // namespace

void for_each_window_batch(const std::shared_ptr<const TokenDataset>& data, const WindowOptions& options, torch::Device device,
                           const std::function<bool(const TokenBatch&)>& visit) {
  if (options.length < 1) throw UsageError("the window length must be at least 1, got " + std::to_string(options.length));
  const int64_t windows = (data->tokens() - 1) / options.length;
  if (windows < 1) {
    throw Error(data->path() + ": has " + std::to_string(data->tokens()) + " tokens, too few for a window of " +
                std::to_string(options.length) + " and the token after it");
  }
  const int64_t fitting = std::max<int64_t>(1, (device.is_cuda() ? kGpuBatchTokens : kCpuBatchTokens) / options.length);
  const int64_t rows = std::min(windows, options.batch > 0 ? options.batch : fitting);
  const auto loader = [&](int64_t batch) {
    return Loader(data, {.length = options.length, .batch = batch, .shuffle = false, .documents = options.documents});
  };
  const Loader whole = loader(rows);
  const int64_t last = windows / rows * rows;
  for (int64_t window = 0; window < last; window += rows)
    if (!visit(whole.batch_at({.window = window}))) return;
  if (last < windows) visit(loader(windows - last).batch_at({.window = last}));
}

Perplexity measure_windows(LanguageModel& model, const std::shared_ptr<const TokenDataset>& data, const WindowOptions& options,
                           const std::function<bool(int64_t)>& progress, const WindowSink& sink) {
  require_positions(model.config(), options.length, options.model + ": a window");
  if (data->vocab_size() > model.config().vocab_size) {
    throw Error(data->path() + ": packed with a tokenizer of " + std::to_string(data->vocab_size()) + " tokens; " + options.model +
                " has " + std::to_string(model.config().vocab_size));
  }
  Perplexity sum;
  int64_t scored = 0;  // tokens, with the targets that have no label
  for_each_window_batch(data, options, model.device(), [&](const TokenBatch& tokens) {
    const Batch batch = to_batch(tokens, model.device());
    const Tensor scores =
        model.evaluation_nats(batch.ids, batch.labels, batch.rows, options.padded_columns).to(torch::kCPU, torch::kFloat).contiguous();
    const std::span<const float> nats(scores.const_data_ptr<float>(), tokens.targets.size());
    sum.add(nats, batch.labelled, options.model);
    if (sink) sink(tokens, nats);
    scored += tokens.rows * tokens.length;
    return !progress || progress(scored);
  });
  return sum;
}

}  // namespace based
