#include "based/models/quantised.h"

#include "based/core/folders.h"
#include "based/mixers/kit/shapes_only.h"
#include "based/models/tensor_view.h"
#include "based/models/weights.h"

namespace based {
namespace {

constexpr const char* kScaleSuffix = ".scale";

int64_t total_bytes(const std::vector<TensorView>& tensors) {
  int64_t sum = 0;
  for (const TensorView& tensor : tensors) sum += static_cast<int64_t>(tensor.bytes.size());
  return sum;
}

}  // namespace

std::string weight_form_name(ops::WeightForm form) { return form == ops::WeightForm::int8 ? "int8" : "int4"; }

ops::WeightForm parse_weight_form(const std::string& name, const std::string& option) {
  for (const ops::WeightForm form : {ops::WeightForm::int8, ops::WeightForm::int4})
    if (name == weight_form_name(form)) return form;
  throw UsageError(option + " must be int8 or int4, got '" + name + "'");
}

std::map<std::string, std::shared_ptr<Projection>> quantisable_layers(const LanguageModel& model) {
  std::map<std::string, std::shared_ptr<Projection>> layers;
  for (const auto& item : model.named_modules({}, /*include_self=*/false)) {
    const auto projection = std::dynamic_pointer_cast<Projection>(item.value());
    if (projection != nullptr && projection->quantisable()) layers[item.key() + ".weight"] = projection;
  }
  return layers;
}

std::optional<StoredQuantised> find_quantised(const SafetensorsFile& file, const std::string& name) {
  for (const ops::WeightForm form : {ops::WeightForm::int8, ops::WeightForm::int4})
    if (const TensorView* values = file.find(name + "." + weight_form_name(form)))
      return StoredQuantised{form, values, file.find(name + kScaleSuffix)};
  return std::nullopt;
}

std::string quantised_problem(const StoredQuantised& stored, int64_t out, int64_t in) {
  if (stored.scales == nullptr) return "has no scales";
  if (!ops::can_quantise(stored.form, in)) return "int4 cannot store rows of " + std::to_string(in) + " weights";
  const bool int8 = stored.form == ops::WeightForm::int8;
  using Shape = std::vector<int64_t>;
  if (stored.values->dtype != (int8 ? DType::I8 : DType::U8) || stored.scales->dtype != (int8 ? DType::F32 : DType::BF16))
    return std::string("has values of type ") + dtype_name(stored.values->dtype) + " and scales of type " +
           dtype_name(stored.scales->dtype);
  if (stored.values->shape != Shape{out, int8 ? in : in / 2} ||
      stored.scales->shape != (int8 ? Shape{out} : Shape{out, in / kernels::kInt4Group}))
    return "has values or scales of a shape that does not fit the model's [" + std::to_string(out) + ", " + std::to_string(in) + "]";
  return "";
}

ops::QuantisedWeight read_quantised(const StoredQuantised& stored, torch::Device device) {
  return {stored.form, tensor_of(*stored.values).to(device), tensor_of(*stored.scales).to(device)};
}

QuantisedFolder quantise_model(const std::string& folder, const std::string& out, ops::WeightForm form) {
  const ModelFiles files = read_model_files(folder);
  if (files.form)
    throw UsageError(folder + ": the weights are " + weight_form_name(*files.form) + " already; quantise the model that they came from");
  const SafetensorsFile file(files.weights_path);
  check_weights(file, files);
  std::map<std::string, std::shared_ptr<Projection>> layers;
  {
    const ShapesOnly no_memory;
    layers = quantisable_layers(LanguageModel(files.config));
  }
  QuantisedFolder result;
  std::vector<Tensor> made;
  std::vector<TensorView> views;
  made.reserve(2 * (layers.size() + 1));
  views.reserve(file.tensors().size() + layers.size() + 1);
  const auto add_quantised = [&](const TensorView& view, ops::WeightForm as) {
    const Tensor full = tensor_of(view);
    if (const int64_t wrong = full.numel() - at::le(full.abs(), ops::kMostWeight).sum().item<int64_t>(); wrong > 0)
      throw Error(file.path() + ": tensor '" + view.name + "': " + std::to_string(wrong) + " of " + std::to_string(full.numel()) +
                  " weights are not finite or above 1e38, which " + weight_form_name(as) +
                  " cannot store; the file is damaged, or the training diverged");
    const ops::QuantisedWeight weight = ops::quantise(full, as);
    made.push_back(weight.values);
    views.push_back(view_of(view.name + "." + weight_form_name(as), made.back()));
    made.push_back(weight.scales);
    views.push_back(view_of(view.name + kScaleSuffix, made.back()));
  };
  for (const TensorView& view : file.tensors()) {
    const bool is_layer = layers.contains(view.name), fits = is_layer && ops::can_quantise(form, view.shape.at(1));
    if (view.name == kEmbeddingName)
      add_quantised(view, kEmbeddingForm);
    else if (fits)
      add_quantised(view, form), ++result.layers;
    else
      views.push_back(view), result.kept += is_layer ? 1 : 0;
  }
  if (result.layers == 0) throw UsageError(folder + ": has no linear layer that " + weight_form_name(form) + " can store");
  result.bytes_before = total_bytes(file.tensors()), result.bytes_after = total_bytes(views);
  Config config = write_config(files.config);
  config.set(kWeightFormKey, Config(Config::Value(weight_form_name(form))));
  write_model_files(config, std::move(views), out, files.tokenizer);
  return result;
}

}  // namespace based
