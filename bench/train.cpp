// A training step of a language model as in `based train`: bf16 with fp32 masters, batches from the host, clipping, the fused update; on a
// GPU it is recorded, as with train.graph = true.
#include "based/models/device.h"
#include "based/train/text_data.h"
#include "based/train/throughput.h"
#include "bench/model.h"

namespace based::bench {
namespace train_case {

struct Shape {
  std::string preset;
  int64_t rows, length;
  int steps;  // timed together, because the steps do not wait for the GPU
};

// Windows of a sequence of random tokens.
TokenBatch random_tokens(const LanguageModel& model, int64_t rows, int64_t length) {
  TokenBatch batch;
  batch.rows = rows;
  batch.length = length;
  const torch::Tensor ids = torch::randint(model.config().vocab_size, {rows * length + 1}, torch::kInt);
  const int32_t* word = ids.const_data_ptr<int32_t>();
  batch.tokens.assign(word, word + rows * length);
  batch.targets.assign(word + 1, word + rows * length + 1);
  for (int64_t row = 0; row <= rows; ++row) batch.cu_seqlens.push_back(row * length);
  return batch;
}

// Compares the loss and the embedding's gradient of a short batch with fp32 on the CPU. The gradient passes through every layer.
double check_gradients(LanguageModel& model, const std::string& what) {
  const TokenBatch tokens = random_tokens(model, 2, 24);
  const auto gradient = [&](LanguageModel& tested) {
    const Batch batch = to_batch(tokens, tested.device());
    const torch::Tensor loss = tested.loss(batch.ids, batch.labels, batch.rows, batch.labelled);
    const torch::Tensor embedding = tested.named_parameters()["embedding"];
    return std::vector{loss.detach().cpu(), torch::autograd::grad({loss}, {embedding})[0].cpu()};
  };
  return verify_in_type(model, gradient, gradient, {{what + " loss", 0.01}, {what + " gradient", 0.1}});
}

void measure(Context& context, const Shape& shape) {
  const auto model = random_preset(context, shape.preset);
  const std::string tokens_of = std::to_string(shape.rows) + " x " + std::to_string(shape.length);
  model->train();
  const double error = check_gradients(*model, shape.preset);
  AdamW optimizer(*model, {});
  TrainStep step(*model, optimizer, {.recordings = context.device.is_cuda() ? 1 : 0});
  const TokenBatch tokens = random_tokens(*model, shape.rows, shape.length);
  const auto count = static_cast<double>(shape.rows * shape.length);
  reset_peak_memory(context.device);
  const double seconds = median_seconds(
                             [&] {
                               for (int i = 0; i < shape.steps; ++i) step.run({to_batch(tokens, context.device)}, i, 1e-4);
                               synchronize(context.device);
                             },
                             context.quick ? 3 : 7) /
                         shape.steps;
  const double rate = context.ceilings.product_gflops();
  const double floor = training_flops(*model, shape.length).value().total() * count / (rate * 1e9);
  Result result{"training step " + tokens_of,
                shape.preset + " bf16, fp32 masters",
                count / seconds,
                "tok/s",
                count / floor,
                floor / seconds,
                "GEMM " + std::to_string(static_cast<int64_t>(rate)) + " GFLOP/s, operations of the weights and between tokens",
                error};
  result.more = {{"ms", seconds * 1e3}};
  if (context.device.is_cuda()) {
    result.headline = "train_" + shape.preset;
    result.more["peak_memory_gib"] = static_cast<double>(peak_memory(context.device)) / (1 << 30);
  }
  context.add(std::move(result));
}

void run(Context& context) {
  const int64_t rows = context.quick ? 2 : 8, length = context.quick ? 64 : 256;
  for (const char* preset : {"based-demo", "attn-tiny"}) measure(context, {preset, rows, length, 1});
}

void run_gpu(Context& context) {
  if (context.quick) return measure(context, {"based-demo", 2, 128, 2});
  for (const char* preset : {"based-360m", "attn-360m", "mamba-360m", "gla-360m"})
    if (context.measures(preset)) measure(context, {preset, 16, 2048, 5});
}

}  // namespace train_case

const Case case_train{"train", "a training step of small language models", train_case::run};
const Case case_gpu_train{"gpu_train", "a training step of the models at 360M, on a GPU", train_case::run_gpu, true};

}  // namespace based::bench
