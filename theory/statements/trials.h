// Helpers for trials of single layers.
#pragma once
#include <functional>

#include "theory/statement.h"

namespace based::theory {

inline constexpr int kSizes = 200;      // random sizes per property
inline constexpr int kInputs = 20;      // random inputs per size
inline constexpr int64_t kLargest = 9;  // the largest absolute value of random entries

// The random inputs per size: a fifth of kInputs in quick trials.
inline int inputs_per_size(const Trial& trial) { return trial.quick() ? kInputs / 5 : kInputs; }

inline Program one_layer(Size size, Layer layer) { return {size, size, {std::move(layer)}}; }

// A case of a property: a program, its inputs' format, and the expected output.
struct Case {
  Program program;
  std::string sized;
  std::function<IntMatrix(Random&)> input;
  std::function<IntMatrix(const IntMatrix&)> expected;
};

// Tries the cases that `draw` returns, each with several inputs. `tried` describes their sizes in words.
inline void try_cases(Trial& trial, const std::string& tried, const std::function<Case(Random&)>& draw) {
  Random random(20240401);
  const int inputs = inputs_per_size(trial);
  trial.size(tried);
  for (int size = 0; size < kSizes; ++size) {
    const Case one = draw(random);
    for (int k = 0; k < inputs; ++k) {
      const IntMatrix input = one.input(random);
      if (!trial.compare(one.program, input, one.expected(input), one.sized)) return;
    }
  }
}

// A layer on random matrices of up to 12 x 8, which is compared with its definition cell by cell: cell(input, row, column).
struct CellCase {
  Size size;
  Layer layer;
  std::function<int64_t(const IntMatrix&, int64_t, int64_t)> cell;
};

inline void try_layer(Trial& trial, int64_t claimed, const std::string& tried, const std::function<CellCase(Random&, Size)>& draw) {
  try_cases(trial, tried, [&](Random& random) {
    const Size drawn{random.between(1, 12), random.between(1, 8)};
    const CellCase one = draw(random, drawn);
    const Program program = one_layer(one.size, one.layer);
    trial.layers(program.depth(), claimed);
    return Case{program, program.tuple(), [one](Random& from) { return random_matrix(from, one.size, -kLargest, kLargest); },
                [one](const IntMatrix& u) {
                  IntMatrix expected(one.size);
                  for (int64_t i = 0; i < one.size.rows; ++i)
                    for (int64_t j = 0; j < one.size.columns; ++j) expected.at(i, j) = one.cell(u, i, j);
                  return expected;
                }};
  });
}

}  // namespace based::theory
