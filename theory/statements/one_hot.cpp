#include "theory/one_hot.h"

#include "theory/integers.h"
#include "theory/statements/trials.h"

namespace based::theory {
namespace one_hot_statement {

Program program_of(const OneHot& shape) {
  return {{shape.rows, shape.bits}, {rows_to_one_hot(shape), columns_to_one_hot(shape)}, one_hot(shape)};
}

IntMatrix bits_of(const std::vector<int64_t>& numbers, int64_t bits) {
  IntMatrix u({static_cast<int64_t>(numbers.size()), bits});
  for (int64_t i = 0; i < u.size.rows; ++i)
    for (int64_t j = 0; j < bits; ++j) u.at(i, j) = bit_of(numbers[static_cast<size_t>(i)], j);
  return u;
}

IntMatrix one_hot_of(const std::vector<int64_t>& numbers, int64_t columns) {
  IntMatrix rows({static_cast<int64_t>(numbers.size()), columns});
  for (int64_t i = 0; i < rows.size.rows; ++i) {
    const int64_t number = numbers[static_cast<size_t>(i)];
    if (number >= 1 && number <= columns) rows.at(i, number - 1) = 1;
  }
  return rows;
}

// Tries all numbers of up to 10 bits in one input, one per row, and rows of random numbers.
void try_numbers(Trial& trial) {
  Random random(11);
  trial.size("all numbers of ≤ 8 bits, N ≤ 256");
  for (int64_t bits = 1; bits <= 8; ++bits) {
    std::vector<int64_t> numbers;
    for (int64_t number = 0; number < int64_t{1} << bits; ++number) numbers.push_back(number);
    for (const int64_t columns : {(int64_t{1} << bits) - 1, (int64_t{1} << bits) / 2 + 1}) {
      const OneHot shape{static_cast<int64_t>(numbers.size()), bits, columns};
      const Program program = program_of(shape);
      trial.layers(program.depth(), "⌈log log N⌉ + O(1)");
      trial.require(program.depth() == 7 + ceil_log2(bits), "more than 7 layers and one a doubling of the bits");
      trial.compare(program, bits_of(numbers, bits), one_hot_of(numbers, columns), program.tuple());
    }
  }
  for (int k = 0; k < kSizes; ++k) {
    const OneHot shape{random.between(1, 20), random.between(1, 6), random.between(1, 64)};
    std::vector<int64_t> numbers;
    for (int64_t i = 0; i < shape.rows; ++i) numbers.push_back(random.between(0, (int64_t{1} << shape.bits) - 1));
    const Program program = program_of(shape);
    trial.compare(program, bits_of(numbers, shape.bits), one_hot_of(numbers, shape.columns), program.tuple());
  }
}

// Runs the repaired layers with one change to a printed form, so that a counterexample concerns only this form.
IntMatrix run_with(const OneHot& shape, const IntMatrix& input, const std::function<void(std::vector<Layer>&)>& change) {
  Program program = program_of(shape);
  change(program.layers);
  return corner(run(program, input), {shape.rows, shape.columns});
}

void try_printed(Trial& trial) {
  const OneHot shape{3, 2, 3};
  const std::vector<int64_t> numbers{1, 3, 2};
  const IntMatrix input = bits_of(numbers, shape.bits), expected = one_hot_of(numbers, shape.columns);
  const auto rows = [](const IntMatrix& found) {
    return "1, 3, 2 become " + row_text(found, 0) + ", " + row_text(found, 1) + ", " + row_text(found, 2);
  };

  IntMatrix found = run_with(shape, input, [](std::vector<Layer>& layers) {
    for (Patch& patch : layers[4].gate_bias) patch.value = 1;
    layers[4].filter_bias.clear();
  });
  trial.correct({"the half for zero bits takes the bit itself", rows(found), "it takes 1 - bit, by B₂ = -1 and a gate of -1 there"},
                found != expected);

  found = run_with(shape, input, [](std::vector<Layer>& layers) { layers[6].filter.push_back({0}); });
  trial.correct({"AND is z ⊙ (z + shifted z)", rows(found), "z ⊙ shifted z"}, found != expected);

  found = run_with(shape, input, [](std::vector<Layer>& layers) { layers[6].filter = {{-1}}; });
  trial.correct({"round m shifts by 2^m rows", rows(found), "by N'·2^m rows: a bit is a block of N' rows"}, found != expected);

  found = run_with(shape, input, [&](std::vector<Layer>& layers) { layers[1].filter_bias = one_hot_as_printed(3)[1].filter_bias; });
  trial.correct(
      {"the bit of row i, from 1, is ⌊i/N'⌋ mod ⌈log N'⌉ + 1", rows(found), "⌊(i - 1)/N'⌋: the last row of each block takes the next bit"},
      found != expected);

  const OneHot three{5, 3, 5};
  const std::vector<int64_t> five{1, 2, 3, 4, 5};
  found = run_with(three, bits_of(five, three.bits),
                   [](std::vector<Layer>& layers) { layers[6].filter_bias.clear(), layers[7].filter_bias.clear(); });
  trial.correct({"the rounds pair blocks, whatever their number",
                 "3 bits: the third has no partner, and 1 … 5 all become zero: " + row_text(found, 0) + ", …",
                 "a block without a partner is multiplied by 1 (B₂ there)"},
                found != one_hot_of(five, three.columns));

  const std::vector<int64_t> four{1, 2, 3, 4};
  const OneHot two_bits{4, 2, 4};
  found = run_with(two_bits, bits_of(four, two_bits.bits), [](std::vector<Layer>&) {});
  const IntMatrix none = corner(run(program_of(two_bits), IntMatrix({4, 2})), {4, 4});
  trial.correct({"⌈log N'⌉ bits hold the numbers 1 … N'",
                 "N' = 4: two bits of 4 are those of 0, so that 4 and no number at all both become " + row_text(none, 0),
                 "⌈log(N' + 1)⌉ bits, as b is defined before"},
                found.at(3, 3) == none.at(3, 3));

  Program printed{{4, 2}, {16, 4}, one_hot_as_printed(4)};
  const IntMatrix whole = corner(run(printed, bits_of(four, 2)), {4, 4});
  trial.note("all as printed, N' = 4: 1 becomes " + row_text(whole, 0) + ", 2 " + row_text(whole, 1) + ", 3 " + row_text(whole, 2));
  trial.correct({"one layer and one shift up, of three layers, a round: ⌈log log N'⌉ + O(1) layers",
                 "that is 4⌈log log N'⌉ + O(1); with one layer a shift still " + std::to_string(printed.depth()) + " layers at N' = 4",
                 "one layer a round, whose filter reaches up: 7 + ⌈log b⌉ layers"},
                printed.depth() > program_of(two_bits).depth());
}

void verify(Trial& trial) {
  try_numbers(trial);
  try_printed(trial);
}

Example example() {
  const OneHot shape{3, 2, 3};
  return {program_of(shape), bits_of({2, 1, 3}, shape.bits),
          "The numbers 2, 1 and 3 in two bits each, the least first, become one-hot rows."};
}

}  // namespace one_hot_statement

extern const Statement statement_one_hot{
    "one_hot", "Proposition 'The 1-hot primitive'", "binary numbers become one-hot rows in ⌈log log N⌉ + O(1) layers",
    216,       one_hot_statement::verify,           one_hot_statement::example};

}  // namespace based::theory
