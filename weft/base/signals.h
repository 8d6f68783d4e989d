#pragma once
// SIGINT, SIGTERM, SIGUSR1 and SIGHUP (unless it is ignored, as under nohup) ask the program to stop: the first sets a flag that
// loops look at between micro-batches or tokens; a second one ends the process at once with 128 + its number (130, 143, 138,
// 129). The flag may be read from any thread.

namespace weft {

// Installs the handlers (again is harmless). Throws SystemError when the system refuses.
void install_stop_signals();

// True from the first signal on.
bool stop_requested();

// The signal that came first; 0 when none did.
int stop_signal();

// Its name for messages: "SIGTERM"; where none came, "a signal of another rank", with which a rank stops that got none itself.
const char* stop_signal_name();

// Asks as a signal would (a time limit of a run, a test); a following signal counts as the second.
void request_stop(int signal);

// Forgets the request: the next signal is a first one again.
void clear_stop_request();

}  // namespace weft
