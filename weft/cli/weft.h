#pragma once
// The program. A program of one's own adds rewards, losses, advantages and families to a Registry and calls weft::main.

#include "weft/train/registry.h"

namespace weft {

// Runs `weft COMMAND ...`; returns the exit code (weft/base/error.h). Errors are printed, never thrown.
int main(int argc, char** argv, const Registry& registry = {});

}  // namespace weft
