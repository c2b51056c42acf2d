#include "theory/arithmetic_circuit.h"

#include <algorithm>
#include <bit>

#include "theory/integers.h"
#include "theory/primitives.h"
#include "theory/routing.h"

namespace based::theory {
namespace {

using Kind = Tape::Kind;
using Value = Tape::Value;

// The level of gates that computes each value, and the last level that needs it.
class Levels {
 public:
  explicit Levels(const ArithmeticCircuit& circuit) : nodes_(&circuit.tape.nodes()), level_(nodes_->size()), needed_(nodes_->size(), -1) {
    for (size_t at = 0; at < nodes_->size(); ++at)
      if (is_gate(static_cast<Value>(at))) level_[at] = 1 + std::max(level((*nodes_)[at].a), level((*nodes_)[at].b));
    for (const Value output : circuit.outputs) depth_ = std::max(depth_, level(output));
    for (const Value output : circuit.outputs) needed_[static_cast<size_t>(output)] = depth_;
    for (size_t at = nodes_->size(); at-- > 0;) {
      if (needed_[at] < 0 || !is_gate(static_cast<Value>(at))) continue;
      for (const Value operand : {(*nodes_)[at].a, (*nodes_)[at].b})
        needed_[static_cast<size_t>(operand)] = std::max(needed_[static_cast<size_t>(operand)], level_[at] - 1);
    }
    for (int64_t k = 0; k <= depth_; ++k) wires_.push_back(on(k));
  }

  const Tape::Node& node(Value value) const { return (*nodes_)[static_cast<size_t>(value)]; }
  int64_t level(Value value) const { return level_[static_cast<size_t>(value)]; }
  bool used(Value value) const { return needed_[static_cast<size_t>(value)] >= 0; }
  bool is_constant(Value value) const { return node(value).kind == Kind::constant; }
  int64_t depth() const { return depth_; }
  // The live values after a level of gates. After level 0 these are the inputs.
  const std::vector<Value>& wires(int64_t level) const { return wires_[static_cast<size_t>(level)]; }

 private:
  bool is_gate(Value value) const { return node(value).kind == Kind::sum || node(value).kind == Kind::product; }
  std::vector<Value> on(int64_t level) const {
    std::vector<Value> values;
    for (size_t at = 0; at < nodes_->size(); ++at)
      if ((*nodes_)[at].kind != Kind::constant && needed_[at] >= level && level_[at] <= level) values.push_back(static_cast<Value>(at));
    return values;
  }

  const std::vector<Tape::Node>* nodes_;
  std::vector<int64_t> level_, needed_;
  int64_t depth_ = 0;
  std::vector<std::vector<Value>> wires_;
};

// The two layers of a level: the first moves operands to columns, the second multiplies columns that are `width` apart.
class LevelLayers {
 public:
  LevelLayers(const Levels& levels, int64_t level, int64_t width)
      : levels_(&levels), width_(width), level_(level), gather_(map_columns("bring operands together", {})) {
    for (const Value value : levels.wires(level - 1)) places_.push_back(value);
    work_.what = "gates of level " + std::to_string(level);
    int64_t column = 0;
    for (const Value value : levels.wires(level)) add(value, column++);
  }
  std::vector<Layer> take() { return {std::move(gather_), std::move(work_)}; }

 private:
  int64_t place(Value value) const {
    // Inputs are at their original places.
    if (level_ == 1) return levels_->node(value).a;
    return std::lower_bound(places_.begin(), places_.end(), value) - places_.begin();
  }
  void bring(Value value, int64_t column, int64_t scale = 1) { gather_.weight.push_back({place(value), column, scale}); }
  void open(int64_t column) {
    work_.gate_bias.push_back({0, 1, column, 1});
    work_.filter.push_back({0, 1, 1, column, 1});
  }

  void add(Value value, int64_t column) {
    const Tape::Node& node = levels_->node(value);
    if (levels_->level(value) < level_) {  // computed earlier and needed later
      open(column);
      return bring(value, column);
    }
    Value a = node.a, b = node.b;
    if (levels_->is_constant(a)) std::swap(a, b);
    const int64_t constant = levels_->node(b).value;
    if (node.kind == Kind::sum) {
      open(column);
      bring(a, column);
      if (levels_->is_constant(b))
        work_.filter_bias.push_back({0, 1, column, 1, constant});
      else
        bring(b, column);
    } else if (levels_->is_constant(b)) {
      open(column);
      bring(a, column, constant);
    } else {
      bring(b, column);
      bring(a, width_ + column);
      work_.weight.push_back({width_ + column, column});
      work_.filter.push_back({0, 1, 1, column, 1});
    }
  }

  const Levels* levels_;
  int64_t width_, level_;
  std::vector<Value> places_;
  Layer gather_, work_;
};

// The layers of a level if wires are rows: left operands are moved to row j, right operands to row half + j. Column 0 multiplies them and
// column 1 adds them.
class TallLevel {
 public:
  // `row` has the row of each value; it is updated for the values after the level.
  TallLevel(const Levels& levels, int64_t level, int64_t half, std::vector<int64_t>& row)
      : levels_(&levels), half_(half), row_(&row), source_(static_cast<size_t>(2 * half), -1) {
    work_.what = "gates of level " + std::to_string(level);
    work_.weight = {{0, 0}};
    work_.filter = {{-half, 1, 1, 0, 1}, {0, 1, 1, 1, 1}, {-half, 1, 1, 1, 1}};
    const std::vector<Value>& wires = levels.wires(level);
    for (size_t j = 0; j < wires.size(); ++j) add(wires[j], level, static_cast<int64_t>(j));
    for (size_t j = 0; j < wires.size(); ++j) row[static_cast<size_t>(wires[j])] = static_cast<int64_t>(j);
  }
  std::vector<Layer> take() {
    std::vector<Layer> layers = route_rows(source_);
    layers.push_back(std::move(work_));
    layers.push_back(keep(kept_));
    layers.push_back(join_routed());
    return layers;
  }

 private:
  void left(Value value, int64_t j) { source_[static_cast<size_t>(j)] = (*row_)[static_cast<size_t>(value)]; }
  void right(Value value, int64_t j) { source_[static_cast<size_t>(half_ + j)] = (*row_)[static_cast<size_t>(value)]; }
  void open(int64_t j, int64_t scale = 1) {
    work_.gate_bias.push_back({j, 1, 1, 1, scale});
    kept_.push_back({j, 1, 1, 1});
  }

  void add(Value value, int64_t level, int64_t j) {
    if (levels_->level(value) < level) {
      open(j);
      return left(value, j);
    }
    const Tape::Node& node = levels_->node(value);
    Value a = node.a, b = node.b;
    if (levels_->is_constant(a)) std::swap(a, b);
    const int64_t constant = levels_->node(b).value;
    left(a, j);
    if (!levels_->is_constant(b)) right(b, j);
    if (node.kind == Kind::sum) {
      open(j);
      if (levels_->is_constant(b)) work_.filter_bias.push_back({j, 1, 1, 1, constant});
    } else if (levels_->is_constant(b)) {
      open(j, constant);
    } else {
      kept_.push_back({j, 1, 0, 1});
    }
  }

  const Levels* levels_;
  int64_t half_;
  std::vector<int64_t>* row_;
  std::vector<int64_t> source_;
  Layer work_;
  std::vector<Patch> kept_;
};

}  // namespace

std::vector<int64_t> ArithmeticCircuit::evaluate(const std::vector<int64_t>& inputs) const {
  std::vector<int64_t> values;
  for (const Tape::Node& node : tape.nodes()) {
    switch (node.kind) {
      case Kind::constant: values.push_back(node.value); break;
      case Kind::input: values.push_back(inputs[static_cast<size_t>(node.a)]); break;
      case Kind::sum: values.push_back(Integers::sum(values[static_cast<size_t>(node.a)], values[static_cast<size_t>(node.b)])); break;
      case Kind::product:
        values.push_back(Integers::product(values[static_cast<size_t>(node.a)], values[static_cast<size_t>(node.b)]));
        break;
    }
  }
  std::vector<int64_t> found;
  for (const Value output : outputs) found.push_back(values[static_cast<size_t>(output)]);
  return found;
}

CircuitShape shape_of(const ArithmeticCircuit& circuit) {
  const Levels levels(circuit);
  CircuitShape shape{circuit.tape.inputs(), 0, levels.depth(), 0};
  for (size_t at = 0; at < circuit.tape.nodes().size(); ++at) shape.size += levels.used(static_cast<Value>(at));
  for (int64_t k = 0; k <= levels.depth(); ++k) shape.width = std::max(shape.width, static_cast<int64_t>(levels.wires(k).size()));
  return shape;
}

Program compile_in_a_row(const ArithmeticCircuit& circuit) {
  const Levels levels(circuit);
  const CircuitShape shape = shape_of(circuit);
  const auto outputs = static_cast<int64_t>(circuit.outputs.size());
  Program program{{1, shape.inputs}, {1, std::max({shape.inputs, 2 * shape.width, outputs})}, {}};
  for (int64_t level = 1; level <= levels.depth(); ++level) program.append(LevelLayers(levels, level, shape.width).take());
  Layer order = map_columns("put the outputs in order", {});
  order.filter_bias.clear();
  order.gate_bias.clear();
  const std::vector<Value>& last = levels.wires(levels.depth());
  for (int64_t k = 0; k < outputs; ++k) {
    const Value output = circuit.outputs[static_cast<size_t>(k)];
    order.filter_bias.push_back({0, 1, k, 1});
    if (levels.is_constant(output)) {
      if (levels.node(output).value != 0) order.gate_bias.push_back({0, 1, k, 1, levels.node(output).value});
    } else {
      const int64_t from = levels.depth() == 0 ? levels.node(output).a : std::lower_bound(last.begin(), last.end(), output) - last.begin();
      order.weight.push_back({from, k});
    }
  }
  program.layers.push_back(order);
  return program;
}

Program compile(const ArithmeticCircuit& circuit) {
  const Levels levels(circuit);
  const CircuitShape shape = shape_of(circuit);
  const auto outputs = static_cast<int64_t>(circuit.outputs.size());
  const auto half = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max({shape.inputs, shape.width, outputs, int64_t{1}}))));
  Program program{{shape.inputs, 1}, {2 * half, kRouted}, {to_routed()}};
  std::vector<int64_t> row(circuit.tape.nodes().size());  // the row of each value
  for (const Value input : levels.wires(0)) row[static_cast<size_t>(input)] = levels.node(input).a;
  for (int64_t level = 1; level <= levels.depth(); ++level) {
    program.append(TallLevel(levels, level, half, row).take());
  }
  std::vector<int64_t> order(static_cast<size_t>(2 * half), -1);
  Layer constants{"constant outputs", identity(kRouted), {}, {{0, kAll, 0, kAll}}, {}};
  for (int64_t k = 0; k < outputs; ++k) {
    const Value output = circuit.outputs[static_cast<size_t>(k)];
    if (!levels.is_constant(output))
      order[static_cast<size_t>(k)] = row[static_cast<size_t>(output)];
    else if (levels.node(output).value != 0)
      constants.gate_bias.push_back({k, 1, 0, kAll, levels.node(output).value});
  }
  program.append(route_rows(order));
  if (!constants.gate_bias.empty()) program.layers.push_back(constants);
  return program;
}

ArithmeticCircuit matrix_product(int64_t size) {
  ArithmeticCircuit circuit;
  Tape& tape = circuit.tape;
  Matrix<Value> a({size, size}), b({size, size});
  for (Value& cell : a.cells) cell = tape.input();
  for (Value& cell : b.cells) cell = tape.input();
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = 0; j < size; ++j) {
      std::vector<Value> terms;
      for (int64_t k = 0; k < size; ++k) terms.push_back(tape.product(a.at(i, k), b.at(k, j)));
      for (; terms.size() > 1; terms.resize((terms.size() + 1) / 2))  // adds pairs, so that the depth is logarithmic
        for (size_t k = 0; 2 * k < terms.size(); ++k)
          terms[k] = 2 * k + 1 < terms.size() ? tape.sum(terms[2 * k], terms[2 * k + 1]) : terms[2 * k];
      circuit.outputs.push_back(terms[0]);
    }
  }
  return circuit;
}

ArithmeticCircuit polynomial_horner(int64_t degree) {
  ArithmeticCircuit circuit;
  Tape& tape = circuit.tape;
  const Value x = tape.input();
  std::vector<Value> coefficients;
  for (int64_t k = 0; k <= degree; ++k) coefficients.push_back(tape.input());
  Value sum = coefficients.back();
  for (int64_t k = degree; k-- > 0;) sum = tape.sum(tape.product(sum, x), coefficients[static_cast<size_t>(k)]);
  circuit.outputs = {sum};
  return circuit;
}

ArithmeticCircuit polynomial_powers(int64_t degree) {
  ArithmeticCircuit circuit;
  Tape& tape = circuit.tape;
  const Value x = tape.input();
  std::vector<Value> terms;
  for (int64_t k = 0; k <= degree; ++k) terms.push_back(tape.input());
  // Neighbouring terms are combined to a + b·x, pairs of these to a + b·x², and so on.
  Value power = x;
  for (; terms.size() > 1; terms.resize((terms.size() + 1) / 2), power = tape.product(power, power))
    for (size_t k = 0; 2 * k < terms.size(); ++k)
      terms[k] = 2 * k + 1 < terms.size() ? tape.sum(terms[2 * k], tape.product(terms[2 * k + 1], power)) : terms[2 * k];
  circuit.outputs = {terms[0]};
  return circuit;
}

ArithmeticCircuit sorting_network(int64_t inputs) {
  BASED_ASSERT(inputs >= 1 && (inputs & (inputs - 1)) == 0);
  ArithmeticCircuit circuit;
  Tape& tape = circuit.tape;
  std::vector<Value> wires;
  for (int64_t k = 0; k < inputs; ++k) wires.push_back(tape.input());
  // The minimum of two bits is a·b, the maximum a + b - a·b.
  const auto compare = [&](int64_t low, int64_t high) {
    Value &a = wires[static_cast<size_t>(low)], &b = wires[static_cast<size_t>(high)];
    const Value both = tape.product(a, b);
    b = tape.sum(tape.sum(a, b), tape.product(tape.constant(-1), both));
    a = both;
  };
  for (int64_t merged = 1; merged < inputs; merged *= 2)
    for (int64_t apart = merged; apart >= 1; apart /= 2)
      for (int64_t first = apart % merged; first + apart < inputs; first += 2 * apart)
        for (int64_t k = 0; k < std::min(apart, inputs - first - apart); ++k)
          if ((first + k) / (2 * merged) == (first + k + apart) / (2 * merged)) compare(first + k, first + k + apart);
  circuit.outputs = wires;
  return circuit;
}

}  // namespace based::theory
