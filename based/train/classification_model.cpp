#include "based/train/classification_model.h"

#include <ATen/CPUGeneratorImpl.h>

#include "based/core/files.h"
#include "based/core/new_folder.h"
#include "based/core/text.h"
#include "based/models/tensor_view.h"
#include "based/models/weights.h"
#include "based/runtime/profile.h"

namespace based {
namespace {

constexpr double kHeadStd = 0.02;
constexpr const char* kClassesFile = "classes.json";

std::string shape_of(const c10::IntArrayRef sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

bool is_head(const std::string& name) { return name.starts_with("head_"); }

}  // namespace

void check_pooling(const std::string& pooling) {
  if (pooling != "mean" && pooling != "last") throw UsageError("classification.pooling must be mean or last, got " + in_quotes(pooling));
}

Classifier::Classifier(const ModelConfig& config, ClassifierHead head) : LanguageModel(config), head_(std::move(head)) {
  check_pooling(head_.pooling);
  BASED_ASSERT(head_.classes.size() >= 2);
  weight_ = register_parameter("head_weight", torch::empty({classes(), config.d_model}).normal_(0, kHeadStd));
  bias_ = register_parameter("head_bias", torch::zeros({classes()}));
}

Tensor Classifier::pool(const Tensor& hidden, const Sequences& rows) const {
  const Tensor wide = hidden.scalar_type() == torch::kDouble ? hidden : hidden.to(torch::kFloat);
  if (head_.pooling == "last") return wide.index_select(0, rows.cu_seqlens().slice(0, 1) - 1);
  if (rows.equal_length()) return wide.view({rows.rows(), -1, wide.size(1)}).mean(1);
  std::vector<Tensor> means;
  for (int64_t row = 0; row < rows.rows(); ++row) means.push_back(wide.narrow(0, rows.starts()[row], rows.length(row)).mean(0));
  return torch::stack(means);
}

Tensor Classifier::class_logits(const Tensor& ids, const Sequences& rows, const ops::Draws& draws) {
  const Tensor pooled = pool(forward(ids, rows, draws), rows);
  return torch::addmm(bias_.to(pooled.scalar_type()), pooled, weight_.to(pooled.scalar_type()).t());
}

Tensor Classifier::loss(const Tensor& ids, const Tensor& labels, const Sequences& rows, int64_t /*labelled*/, const ops::Draws& draws,
                        const Tensor& places) {
  BASED_ASSERT(!places.defined() && labels.size(0) == rows.rows());
  Tensor loss = torch::cross_entropy_loss(class_logits(ids, rows, draws), labels);
  runtime::mark_backward(loss, "head");
  return loss;
}

std::shared_ptr<Classifier> make_classifier(const ModelConfig& config, const ClassifierHead& head, int64_t seed) {
  const auto body = make_model(config, seed);
  auto classifier = std::make_shared<Classifier>(config, head);
  copy_body(*body, *classifier);
  const torch::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(generator_seed(seed, /*step=*/1));
  classifier->named_parameters()["head_weight"].normal_(0, kHeadStd, generator);
  return classifier;
}

void copy_body(const LanguageModel& model, Classifier& classifier) {
  const torch::NoGradGuard no_grad;
  const auto weights = model.named_parameters();
  for (auto& item : classifier.named_parameters())
    if (!is_head(item.key())) item.value().copy_(weights[item.key()]);
  const auto buffers = model.named_buffers();
  for (auto& item : classifier.named_buffers()) item.value().copy_(buffers[item.key()]);
}

void write_classes(const ClassifierHead& head, const std::string& folder) {
  write_file_atomic(path_in(folder, kClassesFile), write_config(head).to_json() + "\n");
}

ClassifierHead read_classes(const std::string& folder) {
  const std::string path = path_in(folder, kClassesFile);
  ClassifierHead head = read_stored([&] {
    ClassifierHead read = read_config<ClassifierHead>(Config::parse_json_file(path));
    check_pooling(read.pooling);
    return read;
  });
  if (head.classes.size() < 2) throw Error(path + ": classes: must name at least two");
  return head;
}

void save_classifier(const Classifier& classifier, const std::string& folder, const Tokenizer& tokenizer) {
  MadeFolder made(folder);
  write_classes(classifier.head(), folder);
  tokenizer.save(folder);
  save_model(classifier, folder, tokenizer.hash());
  made.keep();
}

std::shared_ptr<Classifier> load_classifier(const std::string& folder, torch::Device device) {
  const ClassifierHead head = read_classes(folder);
  const ModelFiles files = read_model_files(folder);
  require_full_weights(files, "a classifier");
  const SafetensorsFile file(files.weights_path);
  auto classifier = std::make_shared<Classifier>(files.config, head);
  classifier->to(device, run_type(files.dtype));
  const torch::NoGradGuard no_grad;
  auto parameters = classifier->named_parameters();
  for (auto& item : parameters) {
    const TensorView& view = file.at(item.key());
    if (view.shape != item.value().sizes().vec())
      throw Error(files.weights_path + ": tensor '" + item.key() + "' has the shape " + shape_of(view.shape) + ", the model's is " +
                  shape_of(item.value().sizes()) + " by config.json and " + kClassesFile);
    item.value().copy_(tensor_of(view));
  }
  for (const TensorView& view : file.tensors())
    if (!parameters.contains(view.name)) throw Error(files.weights_path + ": tensor '" + view.name + "' is not one of a classifier");
  classifier->eval();
  return classifier;
}

}  // namespace based
