#include <cmath>

#include "based/core/random.h"
#include "based/core/text.h"
#include "based/data/index_problem.h"
#include "theory/index_protocol.h"
#include "theory/statement.h"

namespace based::theory {
namespace recurrent_state_statement {

Bits random_bits(Random& random, int64_t length) {
  Bits bits(static_cast<size_t>(length));
  for (uint8_t& bit : bits) bit = static_cast<uint8_t>(random.below(2));
  return bits;
}

// N bits are sufficient: the table answers every question.
void try_table(Trial& trial) {
  trial.size("a table of N bits: all inputs, N ≤ 12; random ones, N ≤ 1024");
  for (int64_t length = 1; length <= 12; ++length) {
    const Errors errors = count_errors(table_machine(length), length);
    trial.count(errors.questions);
    trial.require(errors.wrong == 0 && !find_collision(table_machine(length), length),
                  "N = " + std::to_string(length) + ": the table is wrong");
  }
  Random random(23);
  for (const int64_t length : {64, 256, 1024}) {
    const RecurrentMachine machine = table_machine(length);
    const Bits bits = random_bits(random, length);
    const Bytes message = alice(machine, bits);
    for (int64_t i = 0; i < length; ++i)
      trial.require(bob(machine, message, length, i) == bits[static_cast<size_t>(i)],
                    "N = " + std::to_string(length) + ": the table is wrong");
    trial.count(length);
  }
}

// The question as an instance of MQAR has the same answer by MQAR's definition.
void try_as_mqar(Trial& trial) {
  trial.size("as MQAR: N ≤ 16");
  Random random(29);
  for (int64_t length = 1; length <= 16; ++length) {
    const Bits bits = random_bits(random, length);
    for (int64_t i = 0; i < length; ++i) {
      const auto answer = recall(index_as_mqar(bits, i), length, Reach::before, Matches::sum);
      trial.require(answer == PHot{1, length + 2}.encode(length + bits[static_cast<size_t>(i)]),
                    "N = " + std::to_string(length) + ": as MQAR");
      trial.count();
    }
  }
}

std::vector<RecurrentMachine> smaller_machines(int64_t length, int64_t bits) {
  std::vector<RecurrentMachine> machines{hashed_machine(length, bits), recent_machine(length, bits)};
  for (uint64_t seed = 0; seed < 3; ++seed) machines.push_back(parity_machine(length, bits, seed));
  for (uint64_t seed = 0; seed < 5 && bits < 8; ++seed) machines.push_back(random_machine(length, bits, seed));
  return machines;
}

// Fewer bits are not sufficient: two inputs have the same message, so Bob gives the same answer for both and is wrong about one.
void try_smaller(Trial& trial) {
  trial.size("machines of fewer bits: all inputs, N ≤ 9");
  for (int64_t length = 1; length <= 9; ++length) {
    for (int64_t bits = 0; bits < length; ++bits) {
      double least = 1;
      for (const RecurrentMachine& machine : smaller_machines(length, bits)) {
        const std::string sized = machine.name + ", N = " + std::to_string(length) + ", " + std::to_string(bits) + " bits";
        const auto collision = find_collision(machine, length);
        if (!trial.require(collision.has_value(), sized + ": no two inputs share a message")) continue;
        const auto index = static_cast<size_t>(collision->index);
        const Bytes message = alice(machine, collision->first);
        trial.require(message == alice(machine, collision->second) && collision->first[index] != collision->second[index],
                      sized + ": no collision");
        const Errors errors = count_errors(machine, length);
        trial.count(errors.questions);
        const double best = static_cast<double>(errors.best) / static_cast<double>(errors.questions);
        trial.require(errors.wrong > 0 && errors.best > 0, sized + ": answers everything");
        trial.require(static_cast<double>(bits) >= index_bound(static_cast<double>(length), best) - 1e-9,
                      sized + ": fewer bits than (1 - H(p)) N");
        least = std::min(least, best);
      }
      if (length == 9 && bits % 2 == 0) {
        trial.note("N = 9, a message of " + std::to_string(bits) + " bits: mean error at least " + format_number(least, 3) +
                   " among the machines tried, for which (1 - H(p)) N is " +
                   format_number(index_bound(static_cast<double>(length), least), 2) + " bits");
      }
    }
  }
}

void verify(Trial& trial) {
  try_table(trial);
  try_as_mqar(trial);
  try_smaller(trial);
  const auto collision = find_collision(hashed_machine(3, 2), 3);
  const auto text = [](const Bits& bits) {
    std::string digits;
    for (const uint8_t bit : bits) digits += static_cast<char>('0' + bit);
    return digits;
  };
  if (trial.require(collision.has_value(), "no collision to show"))
    trial.note("N = 3, two cells: " + text(collision->first) + " and " + text(collision->second) + " leave one state, and the query " +
               std::to_string(collision->index) + " tells them apart");
  const double third = index_bound(1, 1.0 / 3);
  trial.require(index_bound(7, 0) == 7 && index_bound(7, 0.5) == 0 && std::abs(third - 0.0817) < 1e-4, "(1 - H(p)) N");
  trial.note("with an answer right 2 times in 3, the paper's Ω(N) is (1 - H(1/3)) N = 0.0817 N bits; with none wrong it is N");
  trial.note("the definition has Zᵢ of u[0 … i-1] and of u[i]: it is the latter; the protocol's {i, x_j} is {j, x_j}");
}

}  // namespace recurrent_state_statement

extern const Statement statement_recurrent_state{"recurrent_state", "Theorem 'space-reg'",
                                                 "a recurrent model that recalls N pairs has a state of Ω(N) bits", 744'334,
                                                 recurrent_state_statement::verify};

}  // namespace based::theory
