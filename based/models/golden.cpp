#include "based/models/golden.h"

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <sstream>

#include "based/core/folders.h"
#include "based/mixers/kit/mixer.h"
#include "based/models/golden/reference_model.h"
#include "based/models/language_model.h"
#include "based/models/published/published.h"
#include "based/models/tensor_view.h"
#include "based/runtime/torch.h"

namespace based {
namespace {

using namespace golden;

// The largest errors so far, relative to their tolerances.
struct Comparison {
  double output_error = 0, gradient_error = 0, worst_error = -1;
  std::string worst;

  void add(double& error, const std::string& name, const Tensor& actual, const Tensor& expected, const std::string& path) {
    if (actual.sizes() != expected.sizes()) {
      std::ostringstream message;
      message << path << ": '" << name << "' has shape " << expected.sizes() << ", ours " << actual.sizes();
      throw Error(message.str());
    }
    if (expected.numel() == 0) return;
    const double scale = expected.abs().max().item<double>();
    double difference = (actual.to(torch::kCPU, torch::kFloat64) - expected).abs().max().item<double>();
    if (scale > 0) difference /= scale;
    if (!std::isfinite(difference)) difference = std::numeric_limits<double>::infinity();
    error = std::max(error, difference);
    if (difference > worst_error) {
      worst_error = difference;
      worst = name;
    }
  }
};

// Copies the file's buffers into the module's, which must have the same number of elements.
void load_buffers(const SafetensorsFile& file, torch::nn::Module& module, const std::map<std::string, std::string>& names) {
  const torch::NoGradGuard no_grad;
  auto buffers = module.named_buffers();
  for (const auto& [theirs, ours] : names) {
    const Tensor value = read(file, "buffer." + theirs);
    Tensor& buffer = buffers[ours];
    if (value.numel() != buffer.numel())
      throw Error(file.path() + ": 'buffer." + theirs + "' has " + std::to_string(value.numel()) + " numbers, our '" + ours + "' " +
                  std::to_string(buffer.numel()));
    buffer.copy_(value.view_as(buffer));
  }
}

int64_t row_length(const SafetensorsFile& file) {
  const TensorView& x = file.at("x");
  if (x.shape.size() < 2) throw Error(file.path() + ": 'x' must be [rows, tokens, …]");
  return x.shape[1];
}

Run run_mixer(const SafetensorsFile& file, const ReferenceMixer& reference, const Place& place) {
  const Tensor x = read(file, "x").to(place.device, place.dtype).requires_grad_(true);
  if (x.dim() != 3) throw Error(file.path() + ": 'x' must be [rows, tokens, d_model]");
  const auto mixer = find_mixer(reference.type).make(Config(reference.options, file.path() + ": "), {x.size(2), 0, 1});
  mixer->to(place.device, place.dtype);
  load_parameters(file, *mixer, reference.names);
  load_buffers(file, *mixer, reference.buffers);
  const Pass pass(Sequences::equal(x.size(0), x.size(1), place.device));
  const Tensor y = mixer->forward(x.flatten(0, 1), pass).view_as(x);
  Run run{{{"y", y}}, {{"x", x}}, (y * read(file, "g").to(y.options())).sum()};
  add_parameters(run, file, *mixer, reference.names);
  return run;
}

Run run_model(const SafetensorsFile& file, const ReferenceModel& reference, const Place& place) {
  const Tensor ids = read(file, "x").to(place.device), labels = read(file, "labels").to(place.device);
  LanguageModel model(reference.config);
  model.to(place.device, place.dtype);
  model.eval();
  load_parameters(file, model, reference.names);
  load_buffers(file, model, reference.buffers);
  const Sequences rows = Sequences::equal(ids.size(0), ids.size(1), place.device);
  const Tensor logits = model.logits(model.forward(ids.flatten(), rows)).view({ids.size(0), ids.size(1), -1});
  Run run{{}, {}, model.loss(ids.flatten(), labels.flatten(), rows)};
  run.outputs = {{"y", logits}, {"loss", run.objective.view({1})}};
  add_parameters(run, file, model, reference.names);
  return run;
}

// A model as its authors published it, in the folder of the file.
Run run_checkpoint(const SafetensorsFile& file, const Place& place) {
  const auto model = PublishedModel(folder_of(file.path())).load(place.dtype, place.device);
  const Tensor ids = read(file, "ids").to(place.device, torch::kInt64), labels = read(file, "labels").to(place.device, torch::kInt64);
  const Sequences rows = Sequences::equal(ids.size(0), ids.size(1), place.device);
  const Tensor logits = model->logits(model->forward(ids.flatten(), rows)).view({ids.size(0), ids.size(1), -1});
  const Tensor loss = model->loss(ids.flatten(), labels.flatten(), rows);
  return {{{"logits", logits}, {"loss", loss.view(file.at("loss").shape)}}, {}, loss};
}

Comparison compare(const SafetensorsFile& file, const Run& run) {
  Comparison result;
  for (const auto& [name, tensor] : run.outputs) {
    result.add(result.output_error, name, tensor.detach(), read(file, name).to(torch::kFloat64), file.path());
  }
  if (run.inputs.empty()) return result;  // a file without gradients
  std::vector<Tensor> inputs;
  for (const auto& input : run.inputs) inputs.push_back(input.second);
  const auto gradients = torch::autograd::grad({run.objective}, inputs, {}, {}, /*create_graph=*/false, /*allow_unused=*/true);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string name = "grad." + run.inputs[i].first;
    const Tensor expected = read(file, name).to(torch::kFloat64);
    const Tensor ours = gradients[i].defined() ? gradients[i] : torch::zeros_like(inputs[i]);
    result.add(result.gradient_error, name, ours.numel() == expected.numel() ? ours.reshape(expected.sizes()) : ours, expected,
               file.path());
  }
  return result;
}

Case make_case(const SafetensorsFile& file, const std::string& mixer) {
  const Json config = parse_json(file.metadata_at("config"), file.path() + ": metadata config");
  const PeerParameters parameters(file, "");
  for (const Family& family : families())
    if (family.operators != nullptr)
      if (auto found = family.operators(file, mixer, config)) return *found;
  if (mixer.rfind("language model checkpoint", 0) == 0) return {[&file](const Place& place) { return run_checkpoint(file, place); }, ""};
  if (mixer.rfind("language model", 0) == 0) {
    const ReferenceModel reference = reference_model(mixer, config, parameters, row_length(file));
    if (!reference.skipped.empty()) return {{}, reference.skipped};
    return {[&file, reference](const Place& place) { return run_model(file, reference, place); }, ""};
  }
  if (file.find("x") == nullptr) return {{}, "mixer '" + mixer + "' is not in this build"};
  const ReferenceMixer reference = reference_mixer({mixer, config, parameters, row_length(file)});
  if (!reference.skipped.empty()) return {{}, reference.skipped};
  return {[&file, reference](const Place& place) { return run_mixer(file, reference, place); }, ""};
}

}  // namespace

double positive_number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return end != text.c_str() && *end == '\0' && value > 0 && std::isfinite(value) ? value : 0;
}

std::optional<double> stated_tolerance(const std::string& text, const std::string& type) {
  if (starts_with(text, (type + " only").c_str())) return positive_number(text.substr(text.rfind(' ') + 1));
  const size_t at = text.find(" in " + type);
  if (at == std::string::npos) return std::nullopt;
  const size_t space = text.find_last_of(' ', at - 1), begin = space == std::string::npos ? 0 : space + 1;
  return positive_number(text.substr(begin, at - begin));
}

GoldenResult check_golden(const std::string& path, torch::Device device) {
  const SafetensorsFile file(path);
  GoldenResult result;
  result.file = path;
  result.mixer = file.metadata_at("mixer");
  const std::string& tolerance = file.metadata_at("tolerance");
  result.tolerance = stated_tolerance(tolerance, "float64").value_or(0);
  result.tolerance_float32 = stated_tolerance(tolerance, "float32").value_or(0);
  const Case golden = make_case(file, result.mixer);
  result.skipped = golden.skipped;
  if (!golden.run) return result;
  if (result.tolerance == 0) throw Error(path + ": metadata tolerance must say '<number> in float64', got '" + tolerance + "'");

  const Comparison exact = compare(file, golden.run({device, torch::kFloat64}));
  result.output_error = exact.output_error;
  result.has_gradients = true;
  result.gradient_error = exact.gradient_error;
  result.worst = exact.worst + " in float64";
  double worst_ratio = exact.worst_error / result.tolerance;
  if (result.tolerance_float32 > 0) {
    const Comparison rounded = compare(file, golden.run({device, torch::kFloat32}));
    result.output_error_float32 = rounded.output_error;
    result.gradient_error_float32 = rounded.gradient_error;
    const double ratio = rounded.worst_error / result.tolerance_float32;
    if (ratio > worst_ratio) {
      worst_ratio = ratio;
      result.worst = rounded.worst + " in float32";
    }
  }
  result.pass = worst_ratio <= 1;
  return result;
}

}  // namespace based
