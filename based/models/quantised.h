// Models whose linear layers are stored in int8 or int4, and whose embedding is stored in int8, in model.safetensors as
//   NAME.int8 [out, in] and NAME.scale, fp32 [out], or
//   NAME.int4, uint8 [out, in / 2], and NAME.scale, bf16 [out, in / 32]
// in place of NAME, the `weight` of a Projection or the embedding. kernels/linear/quantised_linear.h describes the bytes. All other tensors
// are stored as in other models. config.json has the key "weights": "int8" or "int4".
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "based/core/safetensors.h"
#include "based/mixers/kit/projection.h"
#include "based/models/language_model.h"

namespace based {

std::string weight_form_name(ops::WeightForm form);  // "int8" or "int4"
// The inverse. Throws UsageError that begins with `option` for other names.
ops::WeightForm parse_weight_form(const std::string& name, const std::string& option);

// The layers that may be quantised, by the names of their weights.
std::map<std::string, std::shared_ptr<Projection>> quantisable_layers(const LanguageModel& model);

// The embedding is also the last layer; int4 would cost it too much precision.
inline constexpr const char* kEmbeddingName = "embedding";
inline constexpr ops::WeightForm kEmbeddingForm = ops::WeightForm::int8;

// The quantised form of the weight `name` in a file.
struct StoredQuantised {
  ops::WeightForm form = ops::WeightForm::int8;
  const TensorView* values = nullptr;
  const TensorView* scales = nullptr;  // null if the file has none
};
std::optional<StoredQuantised> find_quantised(const SafetensorsFile& file, const std::string& name);
// Why the tensors do not fit a weight [out, in]; empty if they do.
std::string quantised_problem(const StoredQuantised& stored, int64_t out, int64_t in);
ops::QuantisedWeight read_quantised(const StoredQuantised& stored, torch::Device device);  // copies

struct QuantisedFolder {
  int64_t layers = 0;                         // quantised linear layers
  int64_t kept = 0;                           // linear layers that keep their type, since int4 cannot store their rows
  int64_t bytes_before = 0, bytes_after = 0;  // all tensors together
};
// Writes config.json and model.safetensors of `folder` to the folder `out` with quantised linear layers and embedding. Throws UsageError if
// the weights are quantised already or have no layer that can be, and the errors of load_model.
QuantisedFolder quantise_model(const std::string& folder, const std::string& out, ops::WeightForm form);

}  // namespace based
