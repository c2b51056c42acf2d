// The laws about sizes that are known before any computation.
#include <sstream>

#include "based/mixers/kit/shapes_only.h"
#include "tests/mixers/laws.h"

namespace based::laws {

Violation state_formula_is_exact(const Subject& subject, torch::Dtype dtype) {
  const std::shared_ptr<Mixer> mixer = subject.make();
  mixer->to(dtype);
  for (const int64_t tokens : {1, 100, 257}) {
    const Formula formula = mixer->state_formula(tokens);
    if (!formula.is_none() && formula.value() != state_bytes(*mixer, tokens))
      return "after " + std::to_string(tokens) + " tokens " + formula.text() + " is " + std::to_string(formula.value()) +
             " bytes, state_bytes says " + std::to_string(state_bytes(*mixer, tokens));
  }
  return {};
}

Violation sizes_are_known_without_memory(const Subject& subject, torch::Dtype dtype) {
  const auto tensors_of = [&] {
    const std::shared_ptr<Mixer> mixer = subject.make();
    mixer->to(dtype);
    std::vector<std::pair<std::string, Tensor>> all;
    for (const auto& parameter : mixer->named_parameters()) all.emplace_back("parameter " + parameter.key(), parameter.value());
    if (!subject.recurrent) return all;
    const MixerState state = mixer->make_state(2);
    for (const StateTensor& tensor : state.tensors()) all.emplace_back("state's " + tensor.name, tensor.value);
    return all;
  };
  const auto described = [](const std::pair<std::string, Tensor>& one) {
    std::ostringstream text;
    text << one.first << ", " << one.second.scalar_type() << " " << one.second.sizes();
    return text.str();
  };
  const auto real = tensors_of();
  const ShapesOnly no_memory;
  const auto shapes = tensors_of();
  if (shapes.size() != real.size())
    return std::to_string(shapes.size()) + " tensors without memory, " + std::to_string(real.size()) + " with it";
  for (size_t i = 0; i < real.size(); ++i) {
    if (!shapes[i].second.is_meta()) return described(shapes[i]) + ", takes memory under ShapesOnly";
    if (described(shapes[i]) != described(real[i])) return described(shapes[i]) + " without memory is " + described(real[i]) + " with it";
  }
  return {};
}

}  // namespace based::laws
