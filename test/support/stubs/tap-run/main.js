throw new Error('The runner of tap is not installed. Use: npm test -- PATTERN, or TAP_TIMEOUT=300 node FILE')
