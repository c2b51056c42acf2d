#include "based/train/golden.h"

#include <cmath>
#include <cstdlib>
#include <limits>

#include "based/models/golden/reference_model.h"
#include "based/models/language_model.h"
#include "based/models/tensor_view.h"
#include "based/train/optimizer.h"

namespace based {
namespace {

constexpr const char* kName = "AdamW";

// The file's tolerances: "float64: loss, grad_norm 1e-10 relative, parameters 1e-9 of the largest entry; float32: 1e-4 on loss".
struct Tolerances {
  double figures = 0, parameters = 0, float32 = 0;
};

double number_after(const std::string& text, const std::string& words, const std::string& path) {
  const size_t at = text.find(words);
  const char* begin = at == std::string::npos ? "" : text.c_str() + at + words.size();
  const double value = std::strtod(begin, nullptr);
  if (!(value > 0)) throw Error(path + ": metadata tolerance must have a number after '" + words + "', got '" + text + "'");
  return value;
}

template <class T>
T required(const Json& config, const char* key, const std::string& path) {
  if (!config.contains(key)) throw Error(path + ": metadata config needs '" + key + "'");
  return golden::field<T>(config, key, T{}, path);
}

OptimizerOptions options_of(const Json& config, int64_t steps, const std::string& path) {
  const auto betas = required<std::vector<double>>(config, "betas", path);
  if (betas.size() != 2) throw Error(path + ": metadata config: 'betas' must be two numbers");
  OptimizerOptions options;
  options.learning_rate = required<double>(config, "lr", path);
  options.min_learning_rate = required<double>(config, "lr_min", path);
  options.warmup = required<double>(config, "warmup", path) / static_cast<double>(steps);
  options.beta1 = betas[0], options.beta2 = betas[1];
  options.eps = required<double>(config, "eps", path);
  options.weight_decay = required<double>(config, "weight_decay", path);
  options.clip = required<double>(config, "clip", path);
  return options;
}

// The largest error of each kind. `worst` names the step or weight whose error is the largest multiple of its tolerance, worst_ratio.
struct Errors {
  double loss = 0, figures = 0, parameters = 0;
  double worst_ratio = -1;
  std::string worst;

  void add(double& error, const std::string& name, double difference, double tolerance) {
    if (!std::isfinite(difference)) difference = std::numeric_limits<double>::infinity();
    error = std::max(error, difference);
    if (difference / tolerance <= worst_ratio) return;
    worst_ratio = difference / tolerance;
    worst = name;
  }
};

class Training {
 public:
  explicit Training(const std::string& path)
      : file_(path),
        config_(parse_json(file_.metadata_at("config"), path + ": metadata config")),
        reference_(
            golden::reference_model(kName, config_, golden::PeerParameters(file_, ""), golden::required_int(config_, "n_positions", path))),
        steps_(golden::required_int(config_, "steps", path)),
        options_(options_of(config_, steps_, path)) {
    const std::string& text = file_.metadata_at("tolerance");
    allowed_ = {number_after(text, "grad_norm ", path), number_after(text, "parameters ", path), number_after(text, "float32: ", path)};
    ids_ = golden::read(file_, "ids");
    if (ids_.dim() != 3 || ids_.size(0) != steps_ || ids_.size(2) < 2)
      throw Error(path + ": 'ids' must be [" + std::to_string(steps_) + " steps, rows, tokens + 1]");
  }

  const std::string& skipped() const { return reference_.skipped; }
  const Tolerances& allowed() const { return allowed_; }

  // Compares all quantities in float64, and only the losses in float32.
  Errors run(torch::Dtype dtype) const {
    const bool exact = dtype == torch::kFloat64;
    LanguageModel model(reference_.config);
    model.to(dtype);
    golden::load_parameters(file_, model, reference_.names, "param0.");
    AdamW optimizer(model, options_);
    Errors errors;
    for (int64_t step = 0; step < steps_; ++step) {
      const Tensor rows = ids_[step];
      const Tensor loss =
          model.loss(rows.slice(1, 0, -1).flatten(), rows.slice(1, 1).flatten(), Sequences::equal(rows.size(0), rows.size(1) - 1));
      compare(errors, errors.loss, "loss", step, loss.item<double>(), exact ? allowed_.figures : allowed_.float32);
      optimizer.zero_grad();
      loss.backward();
      const Tensor norm = optimizer.clip_gradients(loss).loss_and_norm[1];
      const double rate = learning_rate(options_, step, steps_);
      if (exact) {
        compare(errors, errors.figures, "grad_norm", step, norm.item<double>(), allowed_.figures);
        compare(errors, errors.figures, "lr", step, rate, allowed_.figures);
      }
      optimizer.step(rate);
    }
    errors.figures = std::max(errors.figures, errors.loss);
    if (exact) compare_weights(errors, model);
    return errors;
  }

 private:
  // Compares one step's "loss", "grad_norm" or "lr".
  void compare(Errors& errors, double& error, const std::string& name, int64_t step, double value, double tolerance) const {
    const Tensor all = golden::read(file_, name);
    if (all.dim() != 1 || all.size(0) != steps_) throw Error(file_.path() + ": '" + name + "' must be [" + std::to_string(steps_) + "]");
    const double wanted = all[step].item<double>();
    errors.add(error, name + " of step " + std::to_string(step), std::abs(value - wanted) / std::abs(wanted), tolerance);
  }

  void compare_weights(Errors& errors, const LanguageModel& model) const {
    const auto parameters = model.named_parameters();
    for (const auto& [theirs, ours] : reference_.names) {
      if (!parameters.contains(ours)) continue;  // a bias that this model does not have
      const Tensor wanted = golden::read(file_, "param." + theirs);
      const double error = ((parameters[ours].detach() - wanted).abs().max() / wanted.abs().max()).item<double>();
      errors.add(errors.parameters, "param." + theirs, error, allowed_.parameters);
    }
  }

  SafetensorsFile file_;
  Json config_;
  golden::ReferenceModel reference_;
  int64_t steps_;
  OptimizerOptions options_;
  Tolerances allowed_;
  Tensor ids_;
};

}  // namespace

bool is_optimizer_golden(const std::string& path) {
  const SafetensorsFile file(path);
  const auto found = file.metadata().find("mixer");
  return found != file.metadata().end() && found->second == kName;
}

GoldenResult check_optimizer_golden(const std::string& path) {
  const Training training(path);
  GoldenResult result;
  result.file = path;
  result.mixer = kName;
  result.tolerance = training.allowed().figures, result.tolerance_float32 = training.allowed().float32;
  result.skipped = training.skipped();
  if (!result.skipped.empty()) return result;
  const Errors exact = training.run(torch::kFloat64), rounded = training.run(torch::kFloat32);
  result.has_gradients = true;
  result.output_error = exact.figures, result.gradient_error = exact.parameters, result.output_error_float32 = rounded.loss;
  const bool in_float32 = rounded.worst_ratio > exact.worst_ratio;
  result.worst = in_float32 ? rounded.worst + " in float32" : exact.worst + " in float64";
  result.pass = std::max(rounded.worst_ratio, exact.worst_ratio) <= 1;
  return result;
}

}  // namespace based
