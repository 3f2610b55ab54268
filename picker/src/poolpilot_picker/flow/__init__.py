"""place(request): may it go now; choose and book in one synchronous step. Time is an argument."""
