// Decoding with quantised linear layers, beside the full ones.
#include "based/models/quantised.h"

#include <torch/cuda.h>

#include "bench/decoder.h"
#include "bench/model.h"

namespace based::bench {
namespace quantised_case {

// Quantises the linear layers and the embedding in place.
void quantise_weights(LanguageModel& model, ops::WeightForm form) {
  for (const auto& [name, layer] : quantisable_layers(model)) {
    const torch::Tensor weight = layer->weight();
    if (!ops::can_quantise(form, weight.size(1))) continue;
    const ops::QuantisedWeight quantised = ops::quantise(weight.cpu(), form);
    layer->quantise({form, quantised.values.to(weight.device()), quantised.scales.to(weight.device())}, weight.scalar_type());
  }
  const torch::Tensor embedding = model.named_parameters()[kEmbeddingName];
  const ops::QuantisedWeight quantised = ops::quantise(embedding.cpu(), kEmbeddingForm);
  model.quantise_embedding({kEmbeddingForm, quantised.values.to(embedding.device()), quantised.scales.to(embedding.device())});
}

// On the CPU: the same steps with the full weights and with their int8 and int4 forms. The full weights are timed again before each form,
// so that drift of the machine's speed affects both.
void run_quantised(Context& context) {
  const torch::InferenceMode inference;
  const double rate = context.ceilings.read_gb_s();
  const std::string bound = "weights read once at " + std::to_string(static_cast<int64_t>(rate)) + " GB/s";
  for (const ops::WeightForm form : {ops::WeightForm::int8, ops::WeightForm::int4}) {
    const BenchModel full = verified_model(context), quantised = verified_model(context);
    quantise_weights(*quantised.model, form);
    const double floor = weight_bytes(*quantised.model) / (rate * 1e9);
    for (const int64_t batch : {1, 4, 16}) {
      Decoder before(*full.model, batch), after(*quantised.model, batch);
      before.prefill(100);
      after.prefill(100);
      const int repeats = context.quick ? 5 : 31;
      const double full_seconds = median_seconds([&] { before.step(); }, repeats);
      const double seconds = median_seconds([&] { after.step(); }, repeats);
      const double rows = static_cast<double>(batch);
      context.add({"quantised",
                   full.name + " " + weight_form_name(form) + " B=" + std::to_string(batch) + " position 100",
                   rows / seconds,
                   "tokens/s",
                   rows / floor,
                   floor / seconds,
                   bound,
                   full.error,
                   {{"times_full", full_seconds / seconds}}});
    }
  }
}

// Full weights with the values of the quantised ones.
void copy_rounded(LanguageModel& full, const LanguageModel& quantised) {
  auto parameters = full.named_parameters();
  parameters[kEmbeddingName].copy_(quantised.named_parameters()[kEmbeddingName]);
  for (const auto& [name, layer] : quantisable_layers(quantised)) parameters[name].copy_(layer->weight());
}

// Logits of a prefill's last token and of the steps after it.
torch::Tensor some_logits(LanguageModel& model, const torch::Tensor& ids) {
  constexpr int64_t prefilled = 100;
  const torch::Tensor slots = torch::zeros({1}, ids.options());
  ModelState state = model.make_state(1);
  std::vector<torch::Tensor> rows{
      model.prefill_last(ids.narrow(0, 0, prefilled), Sequences::equal(1, prefilled, model.device()), state, slots)};
  for (int64_t t = prefilled; t < ids.size(0); ++t) rows.push_back(model.step(ids.narrow(0, t, 1), state, slots));
  for (torch::Tensor& row : rows) row = model.logits(row).to(torch::kFloat).cpu();
  return torch::cat(rows);
}

// On a GPU: steps of the engine, sampling included, with int8 weights and with full weights of the same values. Both are timed by turns.
void run_on_gpu(Context& context) {
  const torch::InferenceMode inference;
  context.ceilings.measure();
  constexpr auto form = ops::WeightForm::int8;
  for (const std::string& preset :
       context.quick ? std::vector<std::string>{"based-demo"} : std::vector<std::string>{"based-360m", "based-1.4b"}) {
    if (!context.measures(preset)) continue;
    const auto full = random_preset(context, preset), quantised = random_preset(context, preset);
    full->eval(), quantised->eval();
    quantise_weights(*quantised, form);
    copy_rounded(*full, *quantised);
    const torch::Tensor ids = random_ids(*full, 108);
    const double error = verify(some_logits(*quantised, ids), some_logits(*full, ids), 0.1, preset + " int8");
    for (const int64_t batch : context.quick ? std::vector<int64_t>{4} : std::vector<int64_t>{1, 4, 16}) {
      const auto before = filled_engine(*full, batch, 64, 1000), after = filled_engine(*quantised, batch, 64, 1000);
      const auto seconds_of_step = [](Engine& engine) {
        return median_seconds(
                   [&] {
                     engine.run(kTimedSteps);
                     torch::cuda::synchronize();
                   },
                   5) /
               static_cast<double>(kTimedSteps);
      };
      const double first = seconds_of_step(*before), seconds = seconds_of_step(*after),
                   full_seconds = (first + seconds_of_step(*before)) / 2;
      const FloorTime floor = decode_floor(context, *after, batch, 0);
      const auto rows = static_cast<double>(batch);
      context.add({"quantised",
                   preset + " " + weight_form_name(form) + " B=" + std::to_string(batch),
                   rows / seconds,
                   "tokens/s",
                   rows / floor.seconds,
                   floor.seconds / seconds,
                   floor.bound,
                   error,
                   {{"full_tokens_per_s", rows / full_seconds}, {"times_full", full_seconds / seconds}}});
    }
  }
}

}  // namespace quantised_case

const Case case_quantised{"quantised", "decoding with int8 and int4 weights, beside the full ones, on the CPU",
                          quantised_case::run_quantised};
const Case case_gpu_quantised{"gpu_quantised", "decoding with int8 weights, beside the full ones, sampling included, on a GPU",
                              quantised_case::run_on_gpu, true};

}  // namespace based::bench
