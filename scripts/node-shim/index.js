// For hosts that spawn `node index.js`: becomes `mcp-client --ascii` on the same pipes.
// The binary is $MCP_CLIENT_BIN, else the one beside this file, else the one on PATH.
// `import()` works whatever "type" the nearest package.json has.
(async () => {
  const { spawn } = await import('node:child_process');
  const { existsSync } = await import('node:fs');
  const { constants } = await import('node:os');
  const { dirname, join } = await import('node:path');
  const { isatty } = await import('node:tty');

  const beside = join(dirname(process.argv[1]), 'mcp-client');
  const binary = process.env.MCP_CLIENT_BIN || (existsSync(beside) ? beside : 'mcp-client');
  // Off a terminal in a group of its own: a signal to ours would reach it twice, and two end it at once.
  const child = spawn(binary, ['--ascii', ...process.argv.slice(2)], { stdio: 'inherit', detached: !isatty(0) });

  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP']) process.on(signal, () => child.kill(signal));
  child.on('error', ({ message }) => {
    console.error(`mcp-client cannot be started (${message}): set MCP_CLIENT_BIN to its path`);
    process.exit(127);
  });
  child.on('exit', (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
})();
