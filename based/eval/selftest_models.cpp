#include "based/eval/selftest_models.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "based/core/temporaries.h"
#include "based/core/text.h"
#include "based/eval/perplexity.h"
#include "based/generate/session.h"
#include "based/mixers/kit/mixer.h"
#include "based/models/weights.h"
#include "based/train/run_state.h"

namespace based {
namespace {

// A temporary folder; the destructor removes it with its contents.
class Folder {
 public:
  Folder() : path_(temporary_folder() + "/based-selftest-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr)
      throw Error(temporary_folder() + ": no folder can be made there for the models of the selftest; set TMPDIR to a folder with room");
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }
  std::string file(const char* name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

ModelConfig model_of(const std::string& mixer) {
  ModelConfig config = find_preset("based-tiny");
  config.d_model = 64;  // a multiple of all mixers' head dimensions
  config.vocab_size = 256;
  config.layers = {mixer, mixer};
  Config options{Config::Table{{"type", Config(Config::Value(mixer))}}};
  for (const auto& field : find_mixer(mixer).help())
    if (field.name == "heads") options.set("heads", Config(Config::Value(int64_t{2})));
  config.mixers[mixer] = options;
  return config;
}

constexpr int64_t kLength = 70;

Tensor draw_ids() { return torch::randint(model_of("attention").vocab_size, {kLength}, torch::kInt64); }

enum class Form { forward, prefill, steps, rounds };

// The hidden states of a sequence, computed in the given form. Prefill runs in pieces of 23 tokens, rounds are steps of 5 tokens.
Tensor hidden_of(LanguageModel& model, const Tensor& ids, Form form) {
  const torch::Device device = model.device();
  const Tensor there = ids.to(device), slot = torch::zeros({1}, there.options());
  if (form == Form::forward) return model.forward(there, Sequences::equal(1, kLength, device));
  std::vector<Tensor> rows;
  ModelState state = model.make_state(1);
  for (int64_t at = 0; at < kLength;) {
    const int64_t most = form == Form::steps ? 1 : form == Form::rounds ? 5 : 23, piece = std::min(most, kLength - at);
    const Tensor part = there.narrow(0, at, piece);
    const std::vector<int64_t> rounds(static_cast<size_t>(piece), 1);
    rows.push_back(form == Form::steps    ? model.step(part, state, slot)
                   : form == Form::rounds ? model.step_rounds(part, state, slot.expand({piece}), rounds, nullptr)
                                          : model.prefill(part, Sequences::equal(1, piece, device), state, slot));
    at += piece;
  }
  return torch::cat(rows);
}

// The error of a form, compared with the parallel form in double.
double form_error(const std::string& mixer, torch::Device device, Form form) {
  const torch::NoGradGuard no_grad;
  LanguageModel model(model_of(mixer));
  model.eval();
  model.to(device);
  const Tensor ids = draw_ids(), hidden = hidden_of(model, ids, form);
  model.to(torch::kCPU, torch::kDouble);
  return relative_error(hidden, hidden_of(model, ids, Form::forward));
}

// Throws Error unless a session that loads a saved state generates the same tokens as the session that saved it.
void require_same_continuation(LanguageModel& model, const std::string& hash, const std::vector<int64_t>& prompt, const Folder& folder) {
  EngineOptions plain;
  plain.decode.steps = Steps::plain;
  Session session(model, plain), other(model, plain);
  const SamplingOptions most_likely{.temperature = 0};
  session.append(prompt);
  session.next(most_likely);
  session.save(folder.file("text.state"), hash);
  other.load(folder.file("text.state"), hash);
  for (int i = 0; i < 3; ++i)
    if (other.next(most_likely) != session.next(most_likely))
      throw Error("a loaded state generates other tokens than the session that saved it");
}

// The error of the hidden states of a model that was saved and loaded, compared with the original model in double. For recurrent mixers the
// perplexity and a saved state are checked, too; perplexity sums fp32 numbers, so its tolerance is larger.
double file_error(const std::string& mixer, torch::Device device, torch::Dtype type) {
  const torch::NoGradGuard no_grad;
  const Folder folder;
  LanguageModel model(model_of(mixer));
  model.eval();
  model.to(type);
  save_model(model, folder.path());
  const LoadedModel loaded = load_model(folder.path(), {}, device);
  if (loaded.model->dtype() != type) throw Error("the model has another type than its file");
  const Tensor ids = draw_ids();
  const bool recurrent = find_mixer(mixer).recurrent;
  const Tensor hidden = hidden_of(*loaded.model, ids, recurrent ? Form::prefill : Form::forward);
  model.to(torch::kDouble);
  const double error = relative_error(hidden, hidden_of(model, ids, Form::forward));
  if (!recurrent) return error;
  const std::vector<int64_t> text(ids.const_data_ptr<int64_t>(), ids.const_data_ptr<int64_t>() + kLength);
  require_same_continuation(*loaded.model, loaded.hash, text, folder);
  const double nats =
      model.loss(ids.narrow(0, 0, kLength - 1), ids.narrow(0, 1, kLength - 1), Sequences::equal(1, kLength - 1)).item<double>();
  const Perplexity measured = measure_perplexity(*loaded.model, {text}, {});
  const double off = std::fabs(measured.nats / static_cast<double>(measured.tokens) / nats - 1);
  if (!(off <= (type == torch::kBFloat16 ? 1e-2 : 1e-5)))
    throw Error("its perplexity is off by " + format_number(100 * off, 4) + " % of the nats a token");
  return error;
}

// The error of the weights after a training step from saved files, compared with the same step without saving and loading.
double training_error(const std::string& mixer, torch::Device device, torch::Dtype type) {
  const Folder folder;
  LanguageModel model(model_of(mixer));
  model.to(device, type);
  model.train();
  const Tensor ids = draw_ids().to(device);
  const std::vector<Batch> batches{
      {ids.narrow(0, 0, kLength - 1), ids.narrow(0, 1, kLength - 1), Sequences::equal(1, kLength - 1, device)}};
  const auto step = [&](LanguageModel& trained, AdamW& updater, int64_t at) { TrainStep(trained, updater).run(batches, at, 1e-2); };
  AdamW optimizer(model, {});
  step(model, optimizer, 0);
  save_model(model, folder.path());
  RunState state;
  state.run = Config(Config::Table{});
  save_run_state(folder.path(), state, optimizer);
  const LoadedModel loaded = load_model(folder.path(), {}, device);
  loaded.model->train();
  AdamW other(*loaded.model, {});
  load_optimizer(folder.path(), other);
  step(model, optimizer, 1);
  step(*loaded.model, other, 1);
  double error = 0;
  for (size_t i = 0; i < optimizer.slots().size(); ++i)
    error = std::max(error, relative_error(other.slots()[i].master.detach(), optimizer.slots()[i].master.detach().cpu()));
  return error;
}

}  // namespace

double relative_error(const Tensor& value, const Tensor& reference) {
  if (value.sizes() != reference.sizes()) return INFINITY;
  if (value.numel() == 0) return 0;
  const double scale = std::max(reference.abs().max().item<double>(), 1e-12);
  const double error = (value.to(torch::kCPU, torch::kDouble) - reference.to(torch::kDouble)).abs().max().item<double>() / scale;
  return std::isnan(error) ? INFINITY : error;
}

std::vector<ModelCheck> model_checks(torch::Device device) {
  struct Type {
    torch::Dtype dtype;
    const char* name;
    double tolerance;
  };
  static const std::vector<Type> types{{torch::kFloat32, "fp32", 1e-4}, {torch::kBFloat16, "bf16", 4e-2}, {torch::kFloat64, "fp64", 1e-10}};
  std::vector<ModelCheck> checks;
  for (const MixerInfo& info : mixers()) {
    const std::string mixer = info.name;
    const auto add_form = [&](const char* what, Form form) {
      checks.push_back({mixer, what, 1e-4, [=] { return form_error(mixer, device, form); }});
    };
    if (info.recurrent) {
      add_form("model, prefill in pieces, fp32", Form::prefill);
      add_form("model, step by step, fp32", Form::steps);
      add_form("model, five tokens a step, fp32", Form::rounds);
    } else {
      add_form("model, fp32", Form::forward);
    }
    for (const auto& [dtype, name, tolerance] : types)
      checks.push_back(
          {mixer, std::string("model from files, ") + name, tolerance, [=, type = dtype] { return file_error(mixer, device, type); }});
    for (const auto& [dtype, name, tolerance] : types)
      if (dtype != torch::kFloat64)  // runs do not train in fp64
        checks.push_back(
            {mixer, std::string("training from files, ") + name, 1e-5, [=, type = dtype] { return training_error(mixer, device, type); }});
  }
  return checks;
}

}  // namespace based
