// A program on a small input, layer by layer: as text for a terminal, and as SVG.
#pragma once
#include <string>
#include <vector>

#include "based/theory/statement.h"

namespace based::theory {

// What there is before the first layer, or behind a layer.
struct Frame {
  std::string what;
  IntMatrix matrix;
};

std::vector<Frame> frames(const Example& example);  // the input, embedded, then a frame a layer
std::string draw_text(const Statement& statement);  // statement.example must be there
std::string draw_svg(const Statement& statement);

}  // namespace based::theory
