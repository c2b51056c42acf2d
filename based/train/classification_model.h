// A language model with a linear layer over classes in the place of its tied output projection.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "based/data/tokenizer.h"
#include "based/models/language_model.h"

namespace based {

struct ClassifierHead {
  std::vector<std::string> classes;  // names in the order of the class numbers
  std::string pooling = "mean";

  template <class Visitor>
  void visit(Visitor&& field) {
    field("classes", classes, "class names in the order of the class numbers");
    field("pooling", pooling, "mean: over a sequence's positions; last: the last position");
  }
};

void check_pooling(const std::string& pooling);  // throws UsageError

class Classifier : public LanguageModel {
 public:
  // As LanguageModel; the head is N(0, 0.02) with a bias of 0.
  Classifier(const ModelConfig& config, ClassifierHead head);

  const ClassifierHead& head() const { return head_; }
  int64_t classes() const { return static_cast<int64_t>(head_.classes.size()); }

  // ids int64 [tokens] of packed sequences -> [sequences, classes], fp32 (fp64 in fp64 models). Hidden states after the last norm are
  // pooled in fp32. Every position is a real one: sequences are never padded.
  Tensor class_logits(const Tensor& ids, const Sequences& rows, const ops::Draws& draws = {});
  // Mean cross entropy of the classes; labels int64 [sequences], all of which count. `places` must be undefined.
  Tensor loss(const Tensor& ids, const Tensor& labels, const Sequences& rows, int64_t labelled = -1, const ops::Draws& draws = {},
              const Tensor& places = {}) override;

 private:
  Tensor pool(const Tensor& hidden, const Sequences& rows) const;

  ClassifierHead head_;
  Tensor weight_, bias_;  // [classes, d_model], [classes]
};

// A classifier whose weights depend on the seed alone; without its head it is make_model(config, seed).
std::shared_ptr<Classifier> make_classifier(const ModelConfig& config, const ClassifierHead& head, int64_t seed);
// Replaces all weights but the head's by those of a model with the same config.
void copy_body(const LanguageModel& model, Classifier& classifier);

// A classifier's folder: a model's folder (models/weights.h) whose weights include head_weight and head_bias, and classes.json.
void save_classifier(const Classifier& classifier, const std::string& folder, const Tokenizer& tokenizer);
void write_classes(const ClassifierHead& head, const std::string& folder);  // classes.json
ClassifierHead read_classes(const std::string& folder);                     // throws Error
// In evaluation mode, in the stored type. Throws Error naming a tensor that is missing, unexpected or misshapen.
std::shared_ptr<Classifier> load_classifier(const std::string& folder, torch::Device device = torch::kCPU);

}  // namespace based
