#include "bench/model.h"

#include "based/models/device.h"
#include "based/models/finite.h"
#include "based/models/quantised.h"
#include "based/models/weights.h"

#include <malloc.h>
#include <unistd.h>
#include <algorithm>
#include <fstream>

namespace based::bench {

torch::Tensor random_ids(const LanguageModel& model, int64_t count) {
  return torch::randint(model.config().vocab_size, {count}, torch::kInt64).to(model.device());
}

double weight_bytes(const LanguageModel& model) {
  double sum = 0;
  for (const auto& parameter : model.parameters()) sum += static_cast<double>(parameter.nbytes());
  for (const auto& [name, layer] : quantisable_layers(model))
    if (const auto& weight = layer->quantised()) sum += static_cast<double>(weight->bytes());
  // A step then reads only one row of the embedding itself.
  if (const auto& head = model.quantised_head())
    sum += static_cast<double>(head->bytes()) - static_cast<double>(model.named_parameters()[kEmbeddingName].nbytes());
  return sum;
}

namespace {

// How often a step reads or writes each byte of a tensor that does not grow; not of sums whose updates are deferred.
double touches(const MixerState& layer) {
  return layer.has("v") || layer.has("input") ? 1 : 2;  // a ring buffer is read, and only one entry is written
}

}  // namespace

double state_traffic(const Engine& engine, int64_t tokens) {
  constexpr double round = kernels::kTaylorPending,
                   pending_share = ((round - 1) / 2 + 1) / round;  // the mean number of pending tokens, and the new token
  const ModelState& state = engine.state();
  const auto slots = static_cast<double>(state.slots());
  const auto of_slot = [slots](int64_t bytes) { return static_cast<double>(bytes) / slots; };
  const double rounded = of_slot(engine.rounded_bytes()), replaced = of_slot(engine.replaced_bytes()), recent = replaced / 2,
               pending = of_slot(engine.pending_bytes()) - rounded - recent;
  // One step in a round reads and writes the sums and writes their rounded copies, which the other steps read. Recent inputs are read and
  // written instead of the state that they replace.
  double bytes = pending * pending_share + rounded - 2 * (replaced - recent);
  for (const MixerState& layer : state.layers())
    for (const StateTensor& tensor : layer.tensors()) {
      const double size = static_cast<double>(tensor.value.nbytes()) / slots;
      const bool deferred = pending > 0 && layer.has("kv") && layer.has("k") && !layer.has("v");
      const bool is_copied = deferred && tensor.name == "kv" && rounded > 0;
      // A tensor that grows has as many entries as the sequence has tokens.
      bytes += tensor.grows ? static_cast<double>(tokens * tensor.value.size(-1) * tensor.value.element_size() * tensor.value.size(-2))
               : is_copied  ? 2 / round * size
               : deferred   ? (1 + 1 / round) * size
                            : touches(layer) * size;
    }
  return bytes;
}

int64_t resident_bytes() {
  malloc_trim(0);  // returns the allocator's free memory to the system
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0, resident = 0;
  statm >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

namespace {

constexpr int64_t kVerifiedTokens = 24;

// Logits of the tokens of `ids`, computed by a prefill, by prefill_last for its last token, and by steps for the others.
torch::Tensor by_prefill_and_steps(LanguageModel& model, const torch::Tensor& ids) {
  constexpr int64_t prefilled = 16;
  const torch::Tensor all = ids.to(model.device()), slots = torch::zeros({1}, all.options()), prompt = all.narrow(0, 0, prefilled);
  ModelState state = model.make_state(1);
  const Sequences first = Sequences::equal(1, prefilled, model.device());
  std::vector<torch::Tensor> rows{model.prefill(prompt, first, state, slots).narrow(0, 0, prefilled - 1)};
  state.zero(slots);
  rows.push_back(model.prefill_last(prompt, first, state, slots));
  for (int64_t t = prefilled; t < ids.size(0); ++t) rows.push_back(model.step(all.narrow(0, t, 1), state, slots));
  return torch::cat(rows).cpu();
}

// Compares prefill and steps, in the model's type and on its device, with the parallel form in fp32 (fp64 for fp32 models) on the CPU.
void verify_model(BenchModel& result) {
  const torch::NoGradGuard no_grad;
  LanguageModel& model = *result.model;
  model.eval();
  const bool reduced = model.dtype() == torch::kBFloat16;
  result.name += reduced ? " bf16" : " fp32";
  const torch::Tensor ids = random_ids(model, kVerifiedTokens).cpu();
  try {
    require_finite_logits(model, by_prefill_and_steps(model, ids).to(model.device()));
  } catch (const Error& error) {
    throw Error("bench: " + result.name + ": " + error.what() + "; not timed");
  }
  result.error = verify_in_type(
      model, [&](LanguageModel& tested) { return std::vector{by_prefill_and_steps(tested, ids)}; },
      [&](LanguageModel& exact) { return std::vector{exact.forward(ids, Sequences::equal(1, kVerifiedTokens))}; },
      {{result.name, reduced ? 0.1 : 1e-3}});
}

}  // namespace

std::shared_ptr<LanguageModel> exact_copy(const LanguageModel& model) {
  const torch::NoGradGuard no_grad;
  const SkipInitialisation weights_follow;
  const auto exact = std::make_shared<LanguageModel>(model.config());
  const auto weights = model.named_parameters();
  for (const auto& item : exact->named_parameters()) item.value().copy_(weights[item.key()]);
  if (model.dtype() != torch::kBFloat16) exact->to(torch::kDouble);
  return exact;
}

double verify_in_type(LanguageModel& model, const ModelFunction& made, const ModelFunction& expected,
                      const std::vector<Tolerance>& allowed) {
  const auto copy_like = [&] {
    const std::shared_ptr<LanguageModel> copy = exact_copy(model);
    copy->train(model.is_training());
    return copy;
  };
  const std::vector<torch::Tensor> references = expected(*copy_like()), values = made(model);
  std::vector<torch::Tensor> rounded, in_fp32;  // computed when first needed
  double error = 0;
  for (size_t i = 0; i < allowed.size(); ++i) {
    const auto& [what, most] = allowed[i];
    if (model.dtype() == torch::kBFloat16 && relative_difference(values[i], references[i]) > most) {
      const std::shared_ptr<LanguageModel> other = copy_like();
      other->to(torch::kBFloat16);
      if (rounded.empty()) rounded = expected(*other);
      other->to(model.device(), torch::kFloat);
      if (relative_difference(rounded[i], references[i]) > most) {
        if (in_fp32.empty()) in_fp32 = made(*other);
        error = verify(in_fp32[i], references[i], 0.01, what + " in fp32");
        continue;
      }
    }
    error = verify(values[i], references[i], most, what);
  }
  return error;
}

std::shared_ptr<LanguageModel> random_model(const Context& context, const ModelConfig& config) {
  release_cached_memory(context.device);  // the previous model's recorded training step uses most of the memory
  torch::manual_seed(3);
  std::shared_ptr<LanguageModel> model;
  {
    // A billion random numbers take long on a CPU, so a GPU model's weights are drawn on the GPU.
    std::optional<SkipInitialisation> drawn_there;
    if (context.device.is_cuda()) drawn_there.emplace();
    model = std::make_shared<LanguageModel>(config);
  }
  model->to(context.device, torch::kBFloat16);
  const torch::NoGradGuard no_grad;
  if (context.device.is_cuda())
    for (auto& parameter : model->named_parameters()) {
      if (parameter.value().dim() > 1) parameter.value().normal_(0, initial_std);
      if (parameter.key().ends_with("bias")) parameter.value().zero_();
    }
  return model;
}

std::shared_ptr<LanguageModel> random_preset(const Context& context, const std::string& preset) {
  return random_model(context, find_preset(preset));
}

double prefill_operations(const LanguageModel& model) {
  const std::string last_mlp = "layers." + std::to_string(model.layers() - 1) + ".mlp.";
  int64_t weights = 0;
  for (const auto& parameter : model.named_parameters())
    if (parameter.key() != "embedding" && parameter.key().rfind(last_mlp, 0) != 0) weights += parameter.value().numel();
  return 2 * static_cast<double>(weights);
}

FloorTime decode_floor(Context& context, const Engine& engine, int64_t rows, int64_t tokens) {
  const LanguageModel& model = engine.model();
  const double rate = (context.device.is_cuda() ? context.ceilings.copy_gb_s() : context.ceilings.read_gb_s()) * 1e9;
  const double operations = 2 * static_cast<double>(model.parameter_count() * rows);
  const double bytes = weight_bytes(model) / rate, arithmetic = operations / (context.ceilings.product_gflops() * 1e9);
  const double state = static_cast<double>(rows) * state_traffic(engine, tokens) / rate;
  return {std::max(bytes, arithmetic) + state,
          std::string(arithmetic > bytes ? "weights' operations at the GEMM rate" : "weights read once") +
              ", state read, and written as often as it is"};
}

FloorTime prefill_floor(Context& context, LanguageModel& model, int64_t rows, int64_t length) {
  double per_token = prefill_operations(model);
  for (int64_t layer = 0; layer < model.layers(); ++layer) per_token += model.block(layer).mixer().sequence_flops(length).value_or(0);
  const double arithmetic = per_token * static_cast<double>(rows * length) / (context.ceilings.product_gflops() * 1e9);
  const double bytes =
      (weight_bytes(model) + static_cast<double>(rows * state_bytes(model, length))) / (context.ceilings.copy_gb_s() * 1e9);
  if (bytes > arithmetic) return {bytes, "weights read and states written once, at the copy rate"};
  return {arithmetic, "bf16 GEMM, operations of the weights and between tokens"};
}

double prefill_seconds(LanguageModel& model, int64_t rows, int64_t length, int repeats) {
  const torch::Tensor ids = random_ids(model, rows * length), slots = torch::arange(rows, ids.options());
  ModelState state;
  return median_seconds(
      [&] {
        const Sequences prompts = Sequences::equal(rows, length, model.device());
        model.logits(model.prefill_last(ids, prompts, state, slots));
        synchronize(model.device());
      },
      repeats, [&] { state = model.make_state(rows); });
}

std::unique_ptr<Engine> filled_engine(LanguageModel& model, int64_t rows, int64_t prompt, int64_t more, const DecodeOptions& decode) {
  auto engine = std::make_unique<Engine>(model, EngineOptions{.slots = rows, .cache_tokens = rows * (prompt + more), .decode = decode});
  for (int64_t row = 0; row < rows; ++row) {
    const torch::Tensor ids = random_ids(model, prompt).cpu();
    const int64_t* id = ids.const_data_ptr<int64_t>();
    engine->add(std::vector<int64_t>(id, id + prompt), {.sampling = {1, 50, 0.95}});
  }
  engine->read();
  return engine;
}

BenchModel verified_config(const Context& context, const std::string& name, const ModelConfig& config) {
  BenchModel result{random_model(context, config), name, 0};
  verify_model(result);
  return result;
}

BenchModel verified_preset(const Context& context, const std::string& preset) {
  return verified_config(context, preset, find_preset(preset));
}

BenchModel verified_model(const Context& context) {
  if (context.model.empty()) return verified_preset(context, context.quick ? "based-demo" : "based-360m");
  torch::manual_seed(3);
  BenchModel result{load_model(context.model, {}, context.device).model, context.model, 0};
  verify_model(result);
  return result;
}

}  // namespace based::bench
